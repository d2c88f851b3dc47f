#include "kernels/versions.h"

#include <fmt/core.h>
#include <oneapi/dnnl/dnnl.h>

namespace qkv::inline v0::kernels {

std::string onednn_version() {
  const dnnl_version_t* v = dnnl_version();
  return fmt::format("{}.{}.{}", v->major, v->minor, v->patch);
}

}  // namespace qkv::inline v0::kernels
