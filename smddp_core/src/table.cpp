#include "table.hpp"

#include <algorithm>
#include <sstream>

#include "smddp/errors.hpp"

namespace smddp {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw UsageError("smddp: unreadable table in the store: " + what); }

std::string line_of(std::istringstream& in, const char* what) {
  std::string line;
  if (!std::getline(in, line)) refuse(std::string("it ends before ") + what);
  return line;
}

// "ranks 4" -> 4
long count_of(std::istringstream& in, const std::string& word) {
  std::istringstream line(line_of(in, word.c_str()));
  std::string found;
  long count = -1;
  if (!(line >> found >> count) || found != word || count < 0 || count > kMostRanks)
    refuse("expected '" + word + "' and a number");
  return count;
}

}  // namespace

std::string wire_version() { return std::string(version()) + "/" + std::to_string(kProtocol); }

void require_version(const std::string& theirs, const std::string& who) {
  if (theirs == wire_version()) return;
  throw UsageError("smddp: " + who + " has smddp " + theirs + ", this rank " + wire_version() +
                   ": install one version on all hosts");
}

std::string to_text(const Table& table) {
  std::string text = "smddp-table " + table.version + "\n" + std::string(table.nonce.begin(), table.nonce.end()) +
                     "\nsettings " + std::to_string(table.settings.size()) + "\n" + to_text(table.settings) + "ranks " +
                     std::to_string(table.ranks.size()) + "\n";
  for (const RankInfo& info : table.ranks) text += to_text(info) + "\n";
  return text;
}

Table table_from(const std::string& text) {
  std::istringstream in(text);
  std::istringstream title(line_of(in, "its title"));
  Table table;
  std::string word;
  if (!(title >> word >> table.version) || word != "smddp-table") refuse("it has no title");
  require_version(table.version, "rank 0");
  const std::string nonce = line_of(in, "its nonce");
  if (nonce.size() != table.nonce.size()) refuse("its nonce has " + std::to_string(nonce.size()) + " characters");
  std::copy(nonce.begin(), nonce.end(), table.nonce.begin());
  std::string settings;
  for (long left = count_of(in, "settings"); left > 0; --left) settings += line_of(in, "its settings' end") + "\n";
  table.settings = settings_from(settings);
  for (long left = count_of(in, "ranks"); left > 0; --left)
    table.ranks.push_back(rank_info_from(line_of(in, "its last rank")));
  return table;
}

}  // namespace smddp
