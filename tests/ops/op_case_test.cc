// What every op's case yields: parity of the implementations, gradients, independence of the
// threads; and that no op of the list lacks anything.
#include "support/op_case.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "qkv/threads.h"

#include "kernels/registry.h"
#include "ops/op_list.h"

using namespace qkv;
using qkv::testing::op_cases;
using qkv::testing::OpCase;
using qkv::testing::OpShape;
using qkv::testing::random_normal;
using qkv::testing::relative_difference;
using qkv::testing::Tensors;

namespace {

class OpCaseTest : public ::testing::TestWithParam<std::size_t> {
 protected:
  const OpCase& op() const { return op_cases()[GetParam()]; }
};

Tensors upstream_of(const OpCase& op, const Tensors& out, Random& random) {
  Tensors upstream;
  for (int i = 0; i < op.differentiable; ++i)
    upstream.push_back(random_normal(out[static_cast<std::size_t>(i)].shape(),
                                     out[static_cast<std::size_t>(i)].dtype(), random));
  return upstream;
}

Tensors copy_of(const Tensors& from) {
  Tensors to;
  for (const Tensor& x : from) to.push_back(x.defined() ? x.clone() : Tensor());
  return to;
}

// Outputs, then the gradients, of one run on fixed random inputs.
Tensors run_all(const OpCase& op, OpShape shape, DType dtype) {
  Random random(42, static_cast<std::uint64_t>(shape.rows * 1000 + shape.width));
  const Tensors in = op.inputs(shape, dtype, random);
  Tensors result = op.forward(shape, in);
  if (!op.backward) return result;
  const Tensors upstream = upstream_of(op, result, random), out = copy_of(result);
  for (const Tensor& gradient : op.backward(shape, in, out, upstream)) result.push_back(gradient);
  return result;
}

// sum over outputs of upstream * output, in double.
double weighted_sum(const OpCase& op, const Tensors& in, const Tensors& upstream) {
  const Tensors out = op.forward(op.gradient, in);
  double sum = 0;
  for (std::size_t i = 0; i < upstream.size(); ++i) {
    const Tensor y = out[i].contiguous();
    for (std::int64_t j = 0; j < y.numel(); ++j)
      sum += y.data<double>()[j] * upstream[i].data<double>()[j];
  }
  return sum;
}

std::string read_file(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

TEST_P(OpCaseTest, implementations_agree_with_the_reference) {
  for (const OpShape& shape : op().parity) {
    Tensors right;
    {
      const kernels::ImplementationScope scope(kernels::kReference);
      right = run_all(op(), shape, DType::kFloat32);
    }
    for (const char* name : kernels::runnable_implementations()) {
      const kernels::ImplementationScope scope(name);
      const Tensors got = run_all(op(), shape, DType::kFloat32);
      ASSERT_EQ(got.size(), right.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (!right[i].defined()) continue;
        EXPECT_LE(relative_difference(got[i], right[i]), op().tolerance)
            << name << ", result " << i << ", rows " << shape.rows << ", width " << shape.width
            << ", extra " << shape.extra;
      }
    }
  }
}

// The reference in fp32 differs from the one in fp64 by rounding alone.
TEST_P(OpCaseTest, fp32_agrees_with_fp64) {
  const OpShape shape = op().gradient;
  Random random(7), same(7);
  const Tensors wide = op().forward(shape, op().inputs(shape, DType::kFloat64, random));
  const Tensors narrow = op().forward(shape, op().inputs(shape, DType::kFloat32, same));
  ASSERT_EQ(wide.size(), narrow.size());
  for (std::size_t i = 0; i < wide.size(); ++i) {
    if (!wide[i].defined()) continue;
    EXPECT_LE(relative_difference(narrow[i], wide[i]), std::max(op().tolerance, 2e-6))
        << "output " << i;
  }
}

TEST_P(OpCaseTest, gradients_agree_with_finite_differences) {
  if (!op().backward) {
    ASSERT_FALSE(op().no_gradient.empty());
    return;
  }
  Random random(3);
  const Tensors in = op().inputs(op().gradient, DType::kFloat64, random);
  const Tensors out = op().forward(op().gradient, in);
  const Tensors upstream = upstream_of(op(), out, random);
  const Tensors gradients = op().backward(op().gradient, in, copy_of(out), upstream);
  ASSERT_EQ(gradients.size(), in.size());
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const Tensor d = gradients[i].contiguous();
    ASSERT_EQ(d.shape(), in[i].shape());
    double largest = 1e-3;
    for (std::int64_t j = 0; j < d.numel(); ++j)
      largest = std::max(largest, std::fabs(d.data<double>()[j]));
    for (std::int64_t j = 0; j < in[i].numel(); ++j) {
      double& x = in[i].data<double>()[j];
      const double kept = x, step = 1e-5;
      x = kept + step;
      const double above = weighted_sum(op(), in, upstream);
      x = kept - step;
      const double below = weighted_sum(op(), in, upstream);
      x = kept;
      EXPECT_NEAR(d.data<double>()[j], (above - below) / (2 * step), 2e-7 * largest + 1e-8)
          << "input " << i << ", element " << j;
    }
  }
}

TEST_P(OpCaseTest, bits_do_not_depend_on_threads) {
  const OpShape shape = op().parity.back();
  const int before = num_threads();
  set_num_threads(1);
  const Tensors one = run_all(op(), shape, DType::kFloat32);
  for (const int threads : {2, 3}) {
    set_num_threads(threads);
    const Tensors more = run_all(op(), shape, DType::kFloat32);
    for (std::size_t i = 0; i < one.size(); ++i) {
      if (!one[i].defined()) continue;
      EXPECT_EQ(relative_difference(more[i], one[i]), 0)
          << "result " << i << ", threads " << threads;
    }
  }
  set_num_threads(before);
}

// A chunk without rows: nothing is read, nothing is written, nothing is thrown.
TEST_P(OpCaseTest, takes_no_rows) {
  OpShape shape = op().gradient;
  shape.rows = 0;
  for (const Tensor& x : run_all(op(), shape, DType::kFloat32)) {
    if (x.defined()) {
      EXPECT_EQ(relative_difference(x, x), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, OpCaseTest, ::testing::Range(std::size_t{0}, op_cases().size()), [](const auto& tested) {
      std::string name = op_cases()[tested.param].name();
      std::replace_if(
          name.begin(), name.end(),
          [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
      return name;
    });

namespace {

std::filesystem::path header_of(const std::string& name) {
  const std::filesystem::path root = QKV_SOURCE_DIR;
  return name.starts_with("qkv/") ? root / "include" / name : root / "src/ops" / name;
}

}  // namespace

TEST(OpList, every_op_is_complete) {
  const std::filesystem::path root = QKV_SOURCE_DIR;
  for (const ops::OpInfo& op : ops::op_list()) {
    SCOPED_TRACE(op.name);
    EXPECT_GT(std::string(op.doc).size(), 3u);
    const std::string header = read_file(header_of(op.header));
    EXPECT_NE(header.find(std::string(" ") + op.name + "("), std::string::npos);
    EXPECT_TRUE(std::filesystem::exists(root / "src/kernels/reference" / op.reference));
    const bool has_gradient = *op.gradient != '\0';
    EXPECT_NE(has_gradient, *op.no_gradient != '\0');
    if (has_gradient) {
      EXPECT_NE(header.find(std::string(" ") + op.gradient + "("), std::string::npos);
    }
    const auto count = std::count_if(op_cases().begin(), op_cases().end(), [&](const OpCase& c) {
      if (c.op != op.name) return false;
      EXPECT_EQ(has_gradient, static_cast<bool>(c.backward));
      EXPECT_NE(static_cast<bool>(c.backward), !c.no_gradient.empty());
      EXPECT_FALSE(c.parity.empty());
      return true;
    });
    EXPECT_GT(count, 0) << "no case in tests/support/op_cases.cc";
  }
  for (const OpCase& c : op_cases()) EXPECT_NO_THROW(ops::find_op(c.op.c_str())) << c.op;
  EXPECT_THROW(ops::find_op("no_such_op"), ArgumentError);
}

// Every function on tensors that a header of src/ops or the promised header of an op declares is an
// op of the list or an op's gradient.
TEST(OpList, no_op_is_missing) {
  std::set<std::string> known;
  std::set<std::filesystem::path> headers;
  for (const ops::OpInfo& op : ops::op_list()) {
    known.insert(op.name);
    known.insert(op.gradient);
    headers.insert(header_of(op.header));
  }
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(QKV_SOURCE_DIR) / "src/ops"))
    if (entry.path().extension() == ".h") headers.insert(entry.path());
  const std::regex declaration(R"(\n(?:[A-Za-z_:<>0-9]+ )+([a-z_0-9]+)\(([^;{]*)\);)");
  int found = 0;
  for (const std::filesystem::path& header : headers) {
    const std::string text = std::regex_replace(read_file(header), std::regex("//[^\n]*"), "");
    for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it) {
      const std::string whole = (*it)[0], name = (*it)[1];
      if (whole.find("Tensor") == std::string::npos && whole.find("Input") == std::string::npos)
        continue;
      if (name.starts_with("explain_") || name.starts_with("check_")) continue;
      ++found;
      EXPECT_TRUE(known.contains(name))
          << name << " of " << header.filename() << " is not in src/ops/op_list.cc";
    }
  }
  EXPECT_GE(found, static_cast<int>(ops::op_list().size()));
}
