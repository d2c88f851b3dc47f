// Slices of tensors by NumPy's notation, and their text.
#pragma once

#include <string>
#include <string_view>

#include "qkv/tensor.h"

#include "base/json.h"

namespace qkv::inline v0::inspect {

// "NAME[0,:5]" in two parts. ArgumentError for brackets that do not close.
struct SliceRequest {
  std::string name;
  std::string index;  // "0,:5"; empty: everything
};
SliceRequest parse_slice_request(std::string_view text);

// View of the part that `index` asks for: for each dimension an integer, "a:b" with either side
// left out, or ":"; negative numbers count from the end; dimensions that are not mentioned are
// taken whole. ArgumentError for anything else, and for an integer outside the extent (ranges are
// cut to it, as in NumPy).
Tensor take_slice(const Tensor& tensor, std::string_view index);

// Nested brackets, one row a line. With more than `limit` elements the middle of long dimensions is
// left out.
std::string tensor_text(const Tensor& tensor, std::int64_t limit = 1000);
// Nested arrays of all elements (a number for rank 0).
Json tensor_json(const Tensor& tensor);

}  // namespace qkv::inline v0::inspect
