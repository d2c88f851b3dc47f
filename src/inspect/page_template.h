// The text of page.html, compiled in.
#pragma once

namespace qkv::inline v0::inspect {

extern const char* const kPageTemplate;

}  // namespace qkv::inline v0::inspect
