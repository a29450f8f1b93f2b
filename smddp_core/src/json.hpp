// Just enough JSON to write: objects and arrays, one line, in the order in which members are added.
#pragma once

#include <cstdint>
#include <string>

namespace smddp {

/// `text` between quotes. Bytes beyond ASCII are taken for Latin-1: a message may quote what a stranger sent, and the
/// result must be JSON all the same.
std::string json_quoted(const std::string& text);

class JsonObject {
 public:
  JsonObject& add(const char* name, const std::string& value) { return raw(name, json_quoted(value)); }
  JsonObject& add(const char* name, const char* value) { return add(name, std::string(value)); }
  JsonObject& add(const char* name, bool value) { return raw(name, value ? "true" : "false"); }
  JsonObject& add(const char* name, std::uint64_t value) { return raw(name, std::to_string(value)); }
  JsonObject& add(const char* name, int value) { return raw(name, std::to_string(value)); }
  JsonObject& add(const char* name, double value);
  JsonObject& null(const char* name) { return raw(name, "null"); }
  /// `value` is JSON already.
  JsonObject& raw(const char* name, const std::string& value);
  std::string text() const { return "{" + members_ + "}"; }

 private:
  std::string members_;
};

}  // namespace smddp
