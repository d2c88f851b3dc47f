// Versions of the libraries that kernels use, as they are loaded now.
#pragma once

#include <string>

namespace qkv::inline v0::kernels {

std::string onednn_version();  // "2.6.3"

}  // namespace qkv::inline v0::kernels
