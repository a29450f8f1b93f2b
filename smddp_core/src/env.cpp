#include "smddp/env.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "runtime/cpu_list.hpp"
#include "smddp/errors.hpp"

namespace smddp {
namespace {

enum class Scope { group, process };

/// A setting: its name, whose value counts, and how its text is read and written.
struct Row {
  const char* name;
  Scope scope;
  const char* expected;  // continues "expected ..."
  bool (*read)(Env& env, const std::string& text);
  std::string (*write)(const Env& env);
};

// Far above what is useful, and far below where sums and products of settings overflow.
constexpr long long kMostBytes = 1LL << 44;
constexpr long long kMostSeconds = 366LL * 24 * 3600;
constexpr long long kMostRecords = 1'000'000;

bool to_number(const std::string& text, long long least, long long most, long long& value) {
  char* end = nullptr;
  errno = 0;
  value = std::strtoll(text.c_str(), &end, 10);
  return errno == 0 && end != text.c_str() && *end == '\0' && value >= least && value <= most;
}

template <auto member, long long least, long long most = kMostBytes>
bool read_size(Env& env, const std::string& text) {
  long long value = 0;
  if (!to_number(text, least, most, value)) return false;
  env.*member = static_cast<std::size_t>(value);
  return true;
}

template <auto member>
std::string write_number(const Env& env) {
  return std::to_string(env.*member);
}

template <auto member>
bool read_seconds(Env& env, const std::string& text) {
  long long value = 0;
  if (!to_number(text, 1, kMostSeconds, value)) return false;
  env.*member = std::chrono::seconds(value);
  return true;
}

template <auto member>
std::string write_seconds(const Env& env) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(env.*member).count());
}

bool read_transport(Env& env, const std::string& text) {
  env.tcp_only = text == "tcp";
  return text == "tcp" || text == "auto";
}

bool read_cpus(Env& env, const std::string& text) {
  env.cpus = text;
  return cpus_from(text).has_value();
}

bool read_chunk(Env& env, const std::string& text) {
  return read_size<&Env::shm_chunk_bytes, 0>(env, text) && (env.shm_chunk_bytes == 0 || env.shm_chunk_bytes >= 4096);
}

bool read_stores(Env& env, const std::string& text) {
  env.shm_stores = text == "auto" ? "" : text;
  return text == "auto" || text == "cached" || text == "streaming";
}

const char* const kNets[] = {"auto", "tcp", "fabric"};

bool read_net(Env& env, const std::string& text) {
  const auto found = std::find(std::begin(kNets), std::end(kNets), text);
  env.net = static_cast<Net>(found - std::begin(kNets));
  return found != std::end(kNets);
}

const char* const kWhens[] = {"auto", "always", "never"};

template <auto member>
bool read_when(Env& env, const std::string& text) {
  const auto found = std::find(std::begin(kWhens), std::end(kWhens), text);
  env.*member = static_cast<When>(found - std::begin(kWhens));
  return found != std::end(kWhens);
}

template <auto member>
std::string write_when(const Env& env) {
  return kWhens[static_cast<std::size_t>(env.*member)];
}

template <auto member>
bool read_word(Env& env, const std::string& text) {
  env.*member = text;
  return text.find_first_of(" \n\t") == std::string::npos;
}

template <auto member>
bool read_flag(Env& env, const std::string& text) {
  env.*member = text == "1";
  return text == "0" || text == "1";
}

bool read_streams(Env& env, const std::string& text) {
  long long value = 0;
  if (!to_number(text, 1, 64, value)) return false;
  env.streams = static_cast<int>(value);
  return true;
}

bool read_wire_type(Env& env, const std::string& text) {
  static const std::map<std::string, DType> types{{"float32", DType::f32},   {"fp32", DType::f32},
                                                  {"bfloat16", DType::bf16}, {"bf16", DType::bf16},
                                                  {"float16", DType::f16},   {"fp16", DType::f16}};
  const auto found = types.find(text);
  if (found == types.end()) return false;
  env.wire_dtype = found->second;
  return true;
}

template <auto member>
bool read_text(Env& env, const std::string& text) {
  env.*member = text;
  return true;
}

template <auto member>
std::string write_text(const Env& env) {
  return env.*member;
}

bool read_secret(Env& env, const std::string& path) {
  env.job_secret_file = path;
  std::ifstream in(path);
  return std::getline(in, env.job_secret) && !env.job_secret.empty();
}

const Row kRows[] = {
    {"SMDDP_TRANSPORT", Scope::group, "auto or tcp", read_transport,
     [](const Env& env) { return std::string(env.tcp_only ? "tcp" : "auto"); }},
    {"SMDDP_NET", Scope::group, "auto, tcp or fabric", read_net,
     [](const Env& env) { return std::string(kNets[static_cast<std::size_t>(env.net)]); }},
    {"SMDDP_FABRIC_PROVIDER", Scope::group, "a provider's name, without white space", read_word<&Env::fabric_provider>,
     write_text<&Env::fabric_provider>},
    {"SMDDP_FABRIC_SEGMENT_BYTES", Scope::group, "a whole number from 4096 to 2^44",
     read_size<&Env::fabric_segment_bytes, 4096>, write_number<&Env::fabric_segment_bytes>},
    {"SMDDP_HOST_ID", Scope::process, "a word without white space", read_word<&Env::host_id>,
     write_text<&Env::host_id>},
    {"SMDDP_SHM_CHUNK_BYTES", Scope::group, "0 (by the L2 cache) or a whole number from 4096 to 2^44", read_chunk,
     write_number<&Env::shm_chunk_bytes>},
    {"SMDDP_SHM_STORES", Scope::group, "cached, streaming or auto", read_stores,
     [](const Env& env) { return env.shm_stores.empty() ? std::string("auto") : env.shm_stores; }},
    {"SMDDP_SHM_DIRECT", Scope::group, "auto, always or never", read_when<&Env::shm_direct>,
     write_when<&Env::shm_direct>},
    {"SMDDP_SHM_MAILBOXES", Scope::group, "auto, always or never", read_when<&Env::shm_mailboxes>,
     write_when<&Env::shm_mailboxes>},
    {"SMDDP_ONE_SHOT_BYTES", Scope::group, "a whole number from 0 to 2^44", read_size<&Env::one_shot_bytes, 0>,
     write_number<&Env::one_shot_bytes>},
    {"SMDDP_NET_BLOCK_BYTES", Scope::group, "a whole number from 4096 to 2^44", read_size<&Env::net_block_bytes, 4096>,
     write_number<&Env::net_block_bytes>},
    {"SMDDP_NET_SHARD_BYTES", Scope::group, "a whole number from 4096 to 2^44", read_size<&Env::net_shard_bytes, 4096>,
     write_number<&Env::net_shard_bytes>},
    {"SMDDP_CPUS", Scope::process, "a list of cores, such as 0-3,8", read_cpus,
     [](const Env& env) { return env.cpus; }},
    {"SMDDP_NET_PIECE_BYTES", Scope::group, "a whole number from 4096 to 2^44", read_size<&Env::net_piece_bytes, 4096>,
     write_number<&Env::net_piece_bytes>},
    {"SMDDP_NET_ONE_SHOT_BYTES", Scope::group, "a whole number from 0 to 2^44", read_size<&Env::net_one_shot_bytes, 0>,
     write_number<&Env::net_one_shot_bytes>},
    {"SMDDP_NET_TRY_BYTES", Scope::group, "a whole number from 0 to 2^44", read_size<&Env::net_try_bytes, 0>,
     write_number<&Env::net_try_bytes>},
    {"SMDDP_NET_RELAY", Scope::group, "auto, always or never", read_when<&Env::net_relay>, write_when<&Env::net_relay>},
    {"SMDDP_GPU_EXCHANGE", Scope::group, "auto, always or never", read_when<&Env::gpu_exchange>,
     write_when<&Env::gpu_exchange>},
    {"SMDDP_MIN_SHARD_BYTES", Scope::group, "a whole number from 1 to 2^44", read_size<&Env::min_shard_bytes, 1>,
     write_number<&Env::min_shard_bytes>},
    {"SMDDP_STREAMS", Scope::group, "a whole number from 1 to 64", read_streams, write_number<&Env::streams>},
    {"SMDDP_SOCKET_BUFFER_BYTES", Scope::group, "a whole number from 0 to 2^44",
     read_size<&Env::socket_buffer_bytes, 0>, write_number<&Env::socket_buffer_bytes>},
    {"SMDDP_WIRE_DTYPE", Scope::group, "float32, bfloat16 or float16", read_wire_type,
     [](const Env& env) { return std::string(name_of(env.wire_dtype)); }},
    {"SMDDP_WIRE_MIN_BYTES", Scope::group, "a whole number from 0 to 2^44", read_size<&Env::wire_min_bytes, 0>,
     write_number<&Env::wire_min_bytes>},
    {"SMDDP_WIRE_ERROR_FEEDBACK", Scope::group, "0 or 1", read_flag<&Env::wire_error_feedback>,
     write_number<&Env::wire_error_feedback>},
    {"SMDDP_INIT_TIMEOUT", Scope::process, "a whole number of seconds, from 1 to 31622400 (a year)",
     read_seconds<&Env::init_timeout>, write_seconds<&Env::init_timeout>},
    {"SMDDP_LINK_TIMEOUT", Scope::group, "a whole number of seconds, from 1 to 31622400 (a year)",
     read_seconds<&Env::link_timeout>, write_seconds<&Env::link_timeout>},
    {"SMDDP_CHECKSUM", Scope::group, "0 or 1", read_flag<&Env::checksum>, write_number<&Env::checksum>},
    {"SMDDP_JOB_SECRET", Scope::process, "a text", read_text<&Env::job_secret>,
     [](const Env&) { return std::string("(not shown)"); }},
    {"SMDDP_JOB_SECRET_FILE", Scope::process, "a readable file that is not empty", read_secret,
     write_text<&Env::job_secret_file>},
    {"SMDDP_FLIGHT_RECORDER", Scope::process, "a whole number from 0 to 1000000",
     read_size<&Env::flight_recorder, 0, kMostRecords>, write_number<&Env::flight_recorder>},
    {"SMDDP_FLIGHT_RECORDER_DIR", Scope::process, "a folder", read_text<&Env::flight_recorder_dir>,
     write_text<&Env::flight_recorder_dir>},
    {"SMDDP_STATS_FILE", Scope::process, "a file or folder", read_text<&Env::stats_file>, write_text<&Env::stats_file>},
    // Other values are other tools' levels (WARN, TRACE): silent here.
    {"SMDDP_DEBUG", Scope::group, "INFO",
     [](Env& env, const std::string& text) {
       env.info = text == "INFO";
       return true;
     },
     [](const Env& env) { return std::string(env.info ? "INFO" : "none"); }},
};

const Row* find(const std::string& name) {
  for (const Row& row : kRows)
    if (name == row.name) return &row;
  return nullptr;
}

void apply(Env& env, const Row& row, const std::string& text, const char* origin) {
  if (!row.read(env, text))
    throw UsageError(std::string("smddp: ") + row.name + "=" + text + " (" + origin + "): expected " + row.expected);
}

}  // namespace

Env Env::from_process(const Settings& given) {
  Env env;
  env.read(given, [](const UsageError& error) { throw error; });
  return env;
}

Env Env::from_process(const Settings& given, std::string& refusal) {
  Env env;
  env.read(given, [&](const UsageError& error) {
    if (refusal.empty()) refusal = error.what();
  });
  return env;
}

void Env::read(const Settings& given, const Wrong& wrong) {
  for (const auto& [name, text] : given)
    if (!find(name)) wrong(UsageError(name + "=" + text + " (given by the program): no such setting"));
  for (const Row& row : kRows) {
    const char* variable = std::getenv(row.name);
    const auto chosen = given.find(row.name);
    const Env before = *this;
    try {
      if (variable && *variable)
        apply(*this, row, variable, "environment");
      else if (chosen != given.end())
        apply(*this, row, chosen->second, "given by the program");
    } catch (const UsageError& error) {
      *this = before;
      wrong(error);
    }
  }
}

std::string expected_instead(const std::string& name, const std::string& text) {
  const Row* row = find(name);
  if (!row) throw UsageError("smddp: " + name + ": no such setting");
  Env env;
  return row->read(env, text) ? "" : row->expected;
}

std::vector<std::string> unknown_settings() {
  static constexpr char kPrefix[] = "SMDDP_";
  // Read elsewhere: choose_address(), the Python part.
  static const std::set<std::string> others{"SMDDP_SOCKET_IFNAME", "SMDDP_TUNE_FILE"};
  std::vector<std::string> names;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string name(*entry, std::strcspn(*entry, "="));
    if (name.rfind(kPrefix, 0) == 0 && !find(name) && others.count(name) == 0) names.push_back(name);
  }
  return names;
}

Settings Env::shared() const {
  Settings settings;
  for (const Row& row : kRows)
    if (row.scope == Scope::group) settings[row.name] = row.write(*this);
  return settings;
}

void Env::adopt(const Settings& settings, const std::string& theirs) {
  for (const auto& [name, text] : settings) {
    const Row* row = find(name);
    if (!row || row->scope != Scope::group)
      throw UsageError("smddp: rank 0 (smddp " + theirs + ") uses the setting " + name + ", which smddp " + version() +
                       " on this rank does not know: install one version on all hosts");
    apply(*this, *row, text, "from rank 0");
  }
}

std::string to_text(const Settings& settings) {
  std::string text;
  for (const auto& [name, value] : settings) text += name + "=" + value + "\n";
  return text;
}

Settings settings_from(const std::string& text) {
  Settings settings;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const std::size_t at = line.find('=');
    if (at == std::string::npos || at == 0) throw UsageError("smddp: not a setting: '" + line + "'");
    settings[line.substr(0, at)] = line.substr(at + 1);
  }
  return settings;
}

const char* version() { return SMDDP_VERSION; }

}  // namespace smddp
