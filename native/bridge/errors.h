// What can be said, from the project's catalogue, in both languages.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <utility>

namespace gfx {

using Fields = std::initializer_list<std::pair<const char *, std::string>>;

// The text of one entry, as `gfxgraph explain` writes it, fields filled in.
std::string catalogue_text(const char *code, bool chinese, Fields fields);

// Like snprintf("%s"), and never half a character.
size_t copy_text(const std::string &text, char *buffer, size_t size);

}  // namespace gfx
