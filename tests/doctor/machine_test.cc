// The machine's kernels, and kernels that are made wrong on purpose.
#include "doctor/machine.h"

#include <cstdlib>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "base/file.h"
#include "kernels/registry.h"

using namespace qkv;
using doctor::KernelCase;

namespace {

// fp64 is the truth; fp32, the kernel, is off by `error`.
KernelCase kernel_off_by(double error) {
  return {"softmax", 1e-5, [error](DType dtype) {
            const double value = dtype == DType::kFloat64 ? 1 : 1 + error;
            return std::vector<Tensor>{Tensor::from<double>({value, 0.5}, {2}).to(dtype)};
          }};
}

}  // namespace

TEST(Machine, every_kernel_equals_the_reference) {
  const auto checks = doctor::compare_kernels(doctor::kernel_cases());
  EXPECT_EQ(checks.size(),
            doctor::kernel_cases().size() * kernels::runnable_implementations().size());
  const doctor::Report report = doctor::kernel_report(checks);
  EXPECT_TRUE(report.findings.empty()) << report.str();
}

TEST(Machine, a_wrong_kernel_is_found) {
  for (const double error : {1e-3, std::numeric_limits<double>::quiet_NaN()}) {
    const doctor::Report report =
        doctor::kernel_report(doctor::compare_kernels({kernel_off_by(error)}));
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.errors()[0].id, "kernel");
    EXPECT_TRUE(report.errors()[0].follows.empty());
    if (const char* out = std::getenv("QKV_GALLERY_OUT"); out != nullptr && error == 1e-3)
      write_file_atomic(std::string(out) + "/wrong_kernel.json", report.to_json());
  }
  EXPECT_TRUE(doctor::kernel_report(doctor::compare_kernels({kernel_off_by(1e-7)})).ok());
}
