// The normal forms of Unicode (UAX 15), with the origin of each character kept.
#pragma once

#include "text/aligned_text.h"

namespace qkv::inline v0::text {

struct NormalForm {
  bool compatible = false;  // NFKC, NFKD
  bool composed = false;    // NFC, NFKC
};

AlignedText to_normal_form(const AlignedText& text, NormalForm form);

}  // namespace qkv::inline v0::text
