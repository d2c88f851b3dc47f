// Layouts that callers may have put together by hand.
#pragma once

#include "qkv/layout.h"

namespace qkv::inline v0 {

// ShapeError unless starts begin with 0 and never fall, and positions and samples are as many as
// tokens and sequences, or absent.
void check_layout(const RaggedLayout& layout, const char* where);

}  // namespace qkv::inline v0
