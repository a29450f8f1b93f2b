#include "report.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>

#include "json.hpp"
#include "smddp/errors.hpp"

namespace smddp {
namespace {

JsonObject header_of(const ReportSource& source) {
  const Topology& topology = source.topology;
  JsonObject object;
  object.add("group", source.group).add("rank", topology.rank).add("size", topology.size);
  object.add("host", topology.places[static_cast<std::size_t>(topology.rank)]);
  object.add("pid", static_cast<int>(::getpid())).add("version", version()).add("path", topology.describe());
  if (source.error.empty())
    object.null("error");
  else
    object.add("error", source.error);
  return object;
}

std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return "[" + text + "]";
}

void add_times(JsonObject& object, std::int64_t started_ns, std::int64_t ended_ns) {
  object.add("started", static_cast<double>(started_ns) * 1e-9);
  if (ended_ns == 0)
    object.null("ended");
  else
    object.add("ended", static_cast<double>(ended_ns) * 1e-9);
}

std::string list_of_awaited(std::uint64_t sequence, const Awaited& awaited) {
  return list_of(sequence > 0 && sequence == awaited.sequence ? awaited.ranks : std::vector<int>());
}

std::string line_of(const DelegatedRecord& record, const Awaited& awaited) {
  JsonObject object;
  if (record.number > 0)
    object.add("sequence", record.number);
  else
    object.null("sequence");
  object.add("operation", record.name).add("bytes", record.bytes).add("state", name_of(record.state));
  object.add("delegated", true);
  if (record.peer >= 0) object.add("peer", record.peer);
  add_times(object, record.started_ns, record.ended_ns);
  return object.raw("waiting_for", list_of_awaited(record.number, awaited)).text() + "\n";
}

std::string line_of(const OpRecord& record, const Awaited& awaited) {
  const OpHeader& header = record.header;
  JsonObject object;
  object.add("sequence", header.sequence).add("operation", name_of(header.kind)).add("dtype", name_of(header.dtype));
  object.add("reduce", name_of(header.reduce));
  if (header.root < 0)
    object.null("root");
  else
    object.add("root", header.root);
  object.add("bytes", header.bytes).add("state", name_of(record.state));
  add_times(object, record.started_ns, record.ended_ns);
  object.raw("waiting_for", list_of_awaited(header.sequence, awaited));
  return object.text() + "\n";
}

std::string text_of(const OpCounters& counters) {
  JsonObject object;
  object.add("calls", counters.calls).add("failures", counters.failures).add("bytes", counters.bytes);
  object.add("seconds", counters.seconds).add("exposed_seconds", counters.exposed_seconds);
  return object.add("bytes_per_second", counters.bytes_per_second).text();
}

OpCounters sum_of(OpCounters a, const OpCounters& b) {
  a.calls += b.calls;
  a.failures += b.failures;
  a.bytes += b.bytes;
  a.seconds += b.seconds;
  a.exposed_seconds += b.exposed_seconds;
  if (a.seconds > 0) a.bytes_per_second = static_cast<double>(a.bytes) / a.seconds;
  return a;
}

// A group's name may hold anything; a file's may not.
std::string file_name(const char* what, const ReportSource& source) {
  std::string group;
  for (const char c : source.group) group += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return std::string("smddp-") + what + "-" + group + "-rank" + std::to_string(source.topology.rank) + "-" +
         std::to_string(::getpid());
}

int open_file(const std::string& path, int flags) {
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644);
}

// A group of this name may have failed before, in this process or in one that had its number: what it left stays.
int open_new_file(const std::string& stem, std::string& path) {
  constexpr int kMost = 10'000;
  path = stem + ".jsonl";
  int fd = open_file(path, O_EXCL);
  for (int i = 2; fd < 0 && errno == EEXIST && i < kMost; ++i) {
    path = stem + "-" + std::to_string(i) + ".jsonl";
    fd = open_file(path, O_EXCL);
  }
  return fd;
}

// One write, so that lines of several ranks do not mix in one file. Closes it. "" or why it failed, or the file was not
// opened.
std::string write_to(int fd, const std::string& text) {
  if (fd < 0) return std::strerror(errno);
  const ssize_t written = ::write(fd, text.data(), text.size());
  const int error_number = written < 0 ? errno : ENOSPC;
  ::close(fd);
  return written == static_cast<ssize_t>(text.size()) ? "" : std::strerror(error_number);
}

bool is_folder(const std::string& path) {
  struct stat facts{};
  return ::stat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode);
}

}  // namespace

std::string stats_json(const ReportSource& source) {
  JsonObject operations;
  std::map<std::string, OpCounters> others = source.delegated.counters();
  for (std::size_t i = 0; i < kOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    OpCounters counters = source.recorder.counters(kind);
    // Of some types and reductions, ours are another library's too.
    if (const auto same = others.extract(name_of(kind))) counters = sum_of(counters, same.mapped());
    operations.raw(name_of(kind), text_of(counters));
  }
  for (const auto& [name, counters] : others) operations.raw(name.c_str(), text_of(counters));
  return header_of(source).raw("operations", operations.text()).text();
}

std::string flight_recorder_lines(const ReportSource& source) {
  std::multimap<std::int64_t, std::string> lines;  // by start
  for (const OpRecord& record : source.recorder.recent())
    lines.emplace(record.started_ns, line_of(record, source.awaited));
  for (const DelegatedRecord& record : source.delegated.recent())
    lines.emplace(record.started_ns, line_of(record, source.awaited));
  std::string text = header_of(source).text() + "\n";
  for (const auto& [started, line] : lines) text += line;
  return text;
}

std::string dump_flight_recorder(const Env& env, const ReportSource& source) {
  if (env.flight_recorder_dir.empty()) return "";
  ::mkdir(env.flight_recorder_dir.c_str(), 0755);  // one level, as a convenience; failing to write says the rest
  const std::string text = flight_recorder_lines(source);
  std::string path;
  const std::string failure =
      write_to(open_new_file(env.flight_recorder_dir + "/" + file_name("flight", source), path), text);
  return failure.empty() ? " (last operations: " + path + ")" : " (cannot write " + path + ": " + failure + ")";
}

void print_info(const std::string& group, const Topology& topology, const Env& env) {
  std::ostringstream text;
  if (topology.rank == 0) {
    text << "smddp " << version() << ": group " << group << ": " << topology.size << " ranks on "
         << topology.host_count() << " hosts, " << topology.describe() << "\n  set to:";
    for (const auto& [name, value] : env.shared()) text << " " << name << "=" << value;
    text << "\n";
  }
  if (topology.local_rank == 0) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    const int usable = ::sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? CPU_COUNT(&cpus) : 0;
    text << "smddp " << version() << ": group " << group << ": host "
         << topology.places[static_cast<std::size_t>(topology.rank)] << ": " << join_ranks(topology.local()) << ", "
         << usable << " of " << ::sysconf(_SC_NPROCESSORS_ONLN) << " cores usable, one communication thread a rank on "
         << (env.cpus.empty() ? "any of them" : "cores " + env.cpus) << "\n";
  }
  const std::string lines = text.str();
  std::fputs(lines.c_str(), stderr);
}

void print_unknown_settings(int rank) {
  static std::once_flag once;
  std::call_once(once, [rank] {
    if (rank != 0) return;
    for (const std::string& name : unknown_settings())
      std::fprintf(stderr, "smddp: %s has no effect: smddp %s has no such setting\n", name.c_str(), version());
  });
}

void write_stats(const Env& env, const ReportSource& source) {
  if (env.stats_file.empty()) return;
  const std::string path =
      is_folder(env.stats_file) ? env.stats_file + "/" + file_name("stats", source) + ".jsonl" : env.stats_file;
  const std::string text = stats_json(source) + "\n";
  const std::string failure = write_to(open_file(path, O_APPEND), text);
  if (!failure.empty())
    std::fprintf(stderr, "smddp: SMDDP_STATS_FILE: cannot write %s: %s\n", path.c_str(), failure.c_str());
}

}  // namespace smddp
