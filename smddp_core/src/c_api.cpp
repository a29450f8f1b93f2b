// smddp.h on top of Communicator: exceptions become codes and texts.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "smddp/communicator.hpp"
#include "smddp/errors.hpp"
#include "smddp/smddp.h"

struct smddp_group {
  std::unique_ptr<smddp::Communicator> communicator;
  std::chrono::milliseconds timeout;
  int rank;
  int size;
  std::string path;
};

namespace {

using smddp::ErrorKind;
using std::chrono::milliseconds;

constexpr milliseconds kDefaultTimeout{1'800'000};

thread_local std::string last_error;

smddp_status status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::timeout:
      return SMDDP_ERROR_TIMEOUT;
    case ErrorKind::peer:
      return SMDDP_ERROR_PEER;
    case ErrorKind::mismatch:
      return SMDDP_ERROR_MISMATCH;
    case ErrorKind::aborted:
      return SMDDP_ERROR_ABORTED;
    case ErrorKind::usage:
      return SMDDP_ERROR_USAGE;
    case ErrorKind::system:
      break;
  }
  return SMDDP_ERROR_SYSTEM;
}

// No exception may leave a C function.
template <class Body>
smddp_status guarded(Body body) {
  try {
    body();
    return SMDDP_OK;
  } catch (const smddp::Error& error) {
    last_error = error.what();
    return status_of(error.kind());
  } catch (const std::exception& error) {
    last_error = smddp::with_name(error.what());
    return SMDDP_ERROR_SYSTEM;
  }
}

const smddp_group& existing(const smddp_group* group) {
  if (!group) throw smddp::UsageError("the group is NULL");
  return *group;
}

smddp::Communicator& of(const smddp_group* group) { return *existing(group).communicator; }

// For functions that return no status.
template <class Value, class Ask>
Value answer(Value otherwise, Ask ask) {
  Value value = otherwise;
  guarded([&] { value = ask(); });
  return value;
}

milliseconds timeout_of(const smddp_group* group, int64_t timeout_ms) {
  return timeout_ms > 0 ? milliseconds(timeout_ms) : group->timeout;
}

smddp::DType dtype_of(smddp_dtype dtype) {
  const bool complex = dtype == SMDDP_COMPLEX64 || dtype == SMDDP_COMPLEX128;
  if (!complex && (dtype < SMDDP_FLOAT32 || dtype > SMDDP_INT64))
    throw smddp::UsageError("dtype " + std::to_string(static_cast<int>(dtype)) + ": no such type");
  return static_cast<smddp::DType>(dtype);
}

smddp::ReduceOp reduce_of(smddp_reduce reduce) {
  if (reduce < SMDDP_SUM || reduce > SMDDP_BXOR)
    throw smddp::UsageError("reduce " + std::to_string(static_cast<int>(reduce)) + ": no such reduction");
  return static_cast<smddp::ReduceOp>(reduce);
}
static_assert(static_cast<int>(smddp::DType::i64) == SMDDP_INT64 &&
                  static_cast<int>(smddp::DType::f16) == SMDDP_FLOAT16 &&
                  static_cast<int>(smddp::DType::c128) == SMDDP_COMPLEX128,
              "the C names have the library's numbers");
static_assert(static_cast<int>(smddp::ReduceOp::bxor) == SMDDP_BXOR, "the C names have the library's numbers");

// A program's slip, which would otherwise be a crash here or "Bad address" from a socket.
void need(const void* buffer, size_t elements, const char* name) {
  if (!buffer && elements > 0) throw smddp::UsageError(std::string("`") + name + "` is NULL");
}

/// The program's store. Keys begin with the group's name, so that groups of several names can meet in one.
class CallbackStore final : public smddp::Store {
 public:
  CallbackStore(const smddp_store& store, const std::string& name) : store_(store), prefix_(name + "/") {
    if (!store.set || !store.get) throw smddp::UsageError("the store lacks a function");
  }

  void set(const std::string& key, const std::string& value) override {
    if (const int code = store_.set(store_.context, (prefix_ + key).c_str(), value.data(), value.size()))
      throw smddp::Error(ErrorKind::system, "the store cannot set '" + key + "': its code is " + std::to_string(code));
  }

  std::string get(const std::string& key, milliseconds timeout) override {
    std::string value;
    const int code = store_.get(store_.context, (prefix_ + key).c_str(), timeout.count(), &value);
    if (code == 1) throw smddp::TimeoutError("the store has no '" + key + "'");
    if (code != 0)
      throw smddp::Error(ErrorKind::system, "the store cannot get '" + key + "': its code is " + std::to_string(code));
    return value;
  }

 private:
  smddp_store store_;
  std::string prefix_;
};

smddp::Settings settings_of(const char* const* lines) {
  std::string text;
  for (; lines && *lines; ++lines) text += std::string(*lines) + "\n";
  return smddp::settings_from(text);
}

std::unique_ptr<smddp_group> create(const smddp_options& given) {
  if (given.struct_size != sizeof(smddp_options))
    throw smddp::UsageError("smddp_options.struct_size is " + std::to_string(given.struct_size) + ", expected " +
                            std::to_string(sizeof(smddp_options)) + ": the header is of another version");
  smddp::CommunicatorOptions options;
  options.rank = given.rank;
  options.size = given.size;
  options.timeout = given.timeout_ms > 0 ? milliseconds(given.timeout_ms) : kDefaultTimeout;
  if (given.name) options.name = given.name;
  options.env = smddp::Env::from_process(settings_of(given.settings), options.refusal);
  CallbackStore store(given.store, options.name);
  auto communicator = std::make_unique<smddp::Communicator>(store, options);
  const std::string path = communicator->topology().describe();
  return std::unique_ptr<smddp_group>(
      new smddp_group{std::move(communicator), options.timeout, given.rank, given.size, path});
}

char* copy_of(const std::string& text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (!copy) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace

void smddp_store_value(void* sink, const void* value, size_t bytes) {
  if (!sink || (!value && bytes > 0)) return;
  // Not through the program's function, which may be C.
  guarded([&] { static_cast<std::string*>(sink)->assign(static_cast<const char*>(value), bytes); });
}

smddp_status smddp_create(const smddp_options* options, smddp_group** group) {
  if (group) *group = nullptr;
  return guarded([&] {
    if (!options || !group) throw smddp::UsageError("smddp_create: the options or the group are NULL");
    *group = create(*options).release();
  });
}

void smddp_destroy(smddp_group* group) { delete group; }

smddp_status smddp_barrier(smddp_group* group, int64_t timeout_ms) {
  return guarded([&] { of(group).barrier(timeout_of(group, timeout_ms)); });
}

smddp_status smddp_broadcast(smddp_group* group, void* data, size_t bytes, int root, int64_t timeout_ms) {
  return guarded([&] {
    smddp::Communicator& communicator = of(group);
    need(data, bytes, "data");
    communicator.broadcast(data, bytes, root, timeout_of(group, timeout_ms));
  });
}

smddp_status smddp_all_reduce(smddp_group* group, const void* in, void* out, size_t count, smddp_dtype dtype,
                              smddp_reduce reduce, int64_t timeout_ms) {
  return guarded([&] {
    smddp::Communicator& communicator = of(group);
    need(in, count, "in");
    need(out, count, "out");
    communicator.all_reduce(in, out, count, dtype_of(dtype), reduce_of(reduce), timeout_of(group, timeout_ms));
  });
}

smddp_status smddp_all_gather(smddp_group* group, const void* in, void* out, size_t bytes, int64_t timeout_ms) {
  return guarded([&] {
    smddp::Communicator& communicator = of(group);
    need(in, bytes, "in");
    need(out, bytes, "out");
    smddp::bytes_of(bytes, 1, group->size, "all_gather");
    std::vector<void*> outs;
    for (int r = 0; r < group->size; ++r) outs.push_back(static_cast<char*>(out) + static_cast<size_t>(r) * bytes);
    communicator.all_gather(in, outs, bytes, timeout_of(group, timeout_ms));
  });
}

smddp_status smddp_reduce_scatter(smddp_group* group, const void* in, void* out, size_t count, smddp_dtype dtype,
                                  smddp_reduce reduce, int64_t timeout_ms) {
  return guarded([&] {
    smddp::Communicator& communicator = of(group);
    need(in, count, "in");
    need(out, count, "out");
    const size_t bytes = smddp::bytes_of(count, smddp::size_of(dtype_of(dtype)), group->size, "reduce_scatter");
    std::vector<const void*> ins;
    for (int r = 0; r < group->size; ++r) ins.push_back(static_cast<const char*>(in) + static_cast<size_t>(r) * bytes);
    communicator.reduce_scatter(ins, out, count, dtype_of(dtype), reduce_of(reduce), timeout_of(group, timeout_ms));
  });
}

void smddp_abort(smddp_group* group, const char* reason) {
  guarded([&] { of(group).abort(reason ? reason : "smddp_abort() was called"); });
}

smddp_status smddp_check(smddp_group* group) {
  return guarded([&] { of(group).check(); });
}

int smddp_rank(const smddp_group* group) {
  return answer(-1, [&] { return existing(group).rank; });
}
int smddp_size(const smddp_group* group) {
  return answer(-1, [&] { return existing(group).size; });
}

const char* smddp_path(const smddp_group* group) {
  return answer<const char*>(nullptr, [&] { return existing(group).path.c_str(); });
}

char* smddp_stats(const smddp_group* group) {
  return answer<char*>(nullptr, [&] { return copy_of(of(group).stats()); });
}
char* smddp_flight_recorder(const smddp_group* group) {
  return answer<char*>(nullptr, [&] { return copy_of(of(group).flight_recorder()); });
}
void smddp_free(char* text) { std::free(text); }

const char* smddp_last_error(void) { return last_error.c_str(); }
const char* smddp_version(void) { return smddp::version(); }
