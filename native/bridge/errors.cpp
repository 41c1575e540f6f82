#include "errors.h"

#include <cstring>

namespace gfx {
namespace {

struct Entry {
  const char *code;
  const char *text[2][4];  // language; title, what, why, do
};
const Entry kEntries[] = {
#define GFX_ERROR(code, title, what, why, remedy, title_zh, what_zh, why_zh, remedy_zh) \
  {code, {{title, what, why, remedy}, {title_zh, what_zh, why_zh, remedy_zh}}},
#include "errors.inc"
};

void fill_in(std::string &text, Fields fields) {
  for (const auto &[name, value] : fields) {
    const std::string place = std::string("{") + name + "}";
    for (size_t at = 0; (at = text.find(place, at)) != std::string::npos; at += value.size())
      text.replace(at, place.size(), value);
  }
}

}  // namespace

std::string catalogue_text(const char *code, bool chinese, Fields fields) {
  const Entry *entry = nullptr;
  for (const Entry &each : kEntries)
    if (!strcmp(each.code, code)) entry = &each;
  if (!entry) return code;
  const char *const labels[2][4] = {{"what: ", "why:  ", "do:   ", "more: "},
                                    {"现象：", "原因：", "处理：", "详情："}};
  std::string text = std::string(code) + ": " + entry->text[chinese][0];
  for (int i = 1; i < 4; i++) text += std::string("\n  ") + labels[chinese][i - 1] + entry->text[chinese][i];
  text += std::string("\n  ") + labels[chinese][3] + "gfxgraph explain " + code;
  fill_in(text, fields);
  return text;
}

size_t copy_text(const std::string &text, char *buffer, size_t size) {
  if (!buffer || !size) return text.size();
  size_t n = text.size() < size ? text.size() : size - 1;
  while (n && n < text.size() && (text[n] & 0xc0) == 0x80) n--;  // not inside a UTF-8 character
  memcpy(buffer, text.data(), n);
  buffer[n] = 0;
  return text.size();
}

}  // namespace gfx
