#include "json.hpp"

#include <cstdio>

namespace smddp {

std::string json_quoted(const std::string& text) {
  std::string out = "\"";
  for (const char letter : text) {
    const auto c = static_cast<signed char>(letter);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += letter;
    } else if (c < 0x20 || c == 0x7f) {  // negative: beyond ASCII
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += code;
    } else {
      out += letter;
    }
  }
  return out + "\"";
}

JsonObject& JsonObject::add(const char* name, double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.9f", value);
  return raw(name, text);
}

JsonObject& JsonObject::raw(const char* name, const std::string& value) {
  members_ += (members_.empty() ? "" : ", ") + json_quoted(name) + ": " + value;
  return *this;
}

}  // namespace smddp
