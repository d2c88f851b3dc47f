#include "io/safetensors.h"

#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "support/files.h"

namespace {
using namespace qkv;
using qkv::io::SafetensorsFile;
using qkv::io::save_safetensors;
using qkv::testing::list_folder;
using qkv::testing::TempFolder;
using Tensors = std::vector<std::pair<std::string, Tensor>>;

std::string prefix_of(std::uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes;
}

std::string file_of(const std::string& header, const std::string& data = "") {
  return prefix_of(header.size()) + header + data;
}

// The message with which these bytes are refused; empty if they are not.
std::string refusal(const std::string& bytes) {
  const TempFolder folder;
  const auto path = folder.write("model.safetensors", bytes);
  try {
    SafetensorsFile::open(path);
  } catch (const ModelError& error) {
    EXPECT_NE(std::string(error.what()).find("model.safetensors"), std::string::npos)
        << error.what();
    return error.what();
  }
  return "";
}

std::string one_tensor(const std::string& dtype, const std::string& shape,
                       const std::string& offsets) {
  return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

TEST(Safetensors, saves_and_loads_every_dtype) {
  const TempFolder folder;
  Tensors tensors = {
      {"flag", Tensor::from<float>({1, 0, 1}, {3}).to(DType::kBool)},
      {"weight", Tensor::from<float>({1, -2.5F, 3, 4, 5, 6}, {2, 3})},
      {"wide", Tensor::from<double>({0.1}, {1})},
      {"half", Tensor::from<float>({1, 2}, {2}).to(DType::kFloat16)},
      {"brain", Tensor::from<float>({1, 2}, {2}).to(DType::kBFloat16)},
      {"i64", Tensor::from<std::int64_t>({-1}, {1, 1})},
      {"i32", Tensor::from<std::int32_t>({7}, {1})},
      {"i16", Tensor::from<float>({-7}, {1}).to(DType::kInt16)},
      {"i8", Tensor::from<float>({-8}, {1}).to(DType::kInt8)},
      {"u8", Tensor::from<std::uint8_t>({255}, {1})},
      {"scalar", Tensor::from<float>({4.5F}, {})},
      {"empty", Tensor::empty({0, 3})},
  };
  save_safetensors(folder / "m.safetensors", tensors, {{"format", "pt"}, {"note", "é"}});
  const SafetensorsFile file = SafetensorsFile::open(folder / "m.safetensors");
  ASSERT_EQ(file.names().size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    EXPECT_EQ(file.names()[i], name);
    const Tensor& back = file.tensor(name);
    EXPECT_EQ(back.dtype(), tensor.dtype()) << name;
    EXPECT_EQ(back.shape(), tensor.shape()) << name;
    ASSERT_EQ(back.nbytes(), tensor.nbytes()) << name;
    EXPECT_EQ(std::memcmp(back.raw(), tensor.raw(), tensor.nbytes()), 0) << name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(back.raw()) % dtype_size(back.dtype()), 0u) << name;
  }
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"note", "é"}}));
  EXPECT_TRUE(file.contains("weight"));
  EXPECT_FALSE(file.contains("weights"));
}

TEST(Safetensors, equal_input_gives_equal_bytes_and_padded_headers) {
  const TempFolder folder;
  const Tensor matrix = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  for (const char* name : {"a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg"}) {
    save_safetensors(folder / "1", {{name, matrix}});
    save_safetensors(folder / "2", {{name, matrix.transpose(0, 1).transpose(0, 1)}});
    const std::string bytes = read_file(folder / "1");
    EXPECT_EQ(bytes, read_file(folder / "2"));
    EXPECT_EQ(static_cast<unsigned char>(bytes[0]) % 8, 0);
    EXPECT_EQ(bytes.size() % 8, 0u);
  }
}

TEST(Safetensors, saves_views_packed) {
  const TempFolder folder;
  const Tensor matrix = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  save_safetensors(folder / "m", {{"t", matrix.transpose(0, 1)}});
  const Tensor back = SafetensorsFile::open(folder / "m").tensor("t");
  const std::vector<float> expected = {1, 4, 2, 5, 3, 6};
  EXPECT_EQ(back.shape(), (Shape{3, 2}));
  EXPECT_EQ(std::vector<float>(back.data<float>(), back.data<float>() + 6), expected);
}

TEST(Safetensors, tensors_outlive_the_file_object) {
  const TempFolder folder;
  save_safetensors(folder / "m",
                   {{"a", Tensor::from<float>({1, 2}, {2})}, {"pad", Tensor::zeros({5000})}});
  Tensor a;
  { a = SafetensorsFile::open(folder / "m").tensor("a"); }
  std::filesystem::remove(folder / "m");
  EXPECT_EQ(a.data<float>()[1], 2.0F);
}

TEST(Safetensors, an_absent_name_names_the_nearest) {
  const TempFolder folder;
  save_safetensors(folder / "m", {{"encoder.weight", Tensor::zeros({1})}});
  try {
    SafetensorsFile::open(folder / "m").tensor("encoder.wieght");
    FAIL();
  } catch (const ModelError& error) {
    EXPECT_NE(std::string(error.what()).find("'encoder.weight'"), std::string::npos)
        << error.what();
  }
}

TEST(Safetensors, refuses_names_it_could_not_read_back) {
  const TempFolder folder;
  const Tensor one = Tensor::zeros({1});
  EXPECT_THROW(save_safetensors(folder / "m", {{"a", one}, {"a", one}}), ArgumentError);
  EXPECT_THROW(save_safetensors(folder / "m", {{"__metadata__", one}}), ArgumentError);
  EXPECT_THROW(save_safetensors(folder / "m", {{"\xFF", one}}), ArgumentError);
  EXPECT_THROW(save_safetensors(folder / "m", {{"a", Tensor()}}), ArgumentError);
  EXPECT_TRUE(list_folder(folder.path()).empty());
}

TEST(Safetensors, b55_the_header_length_is_not_trusted) {
  const std::string padded = "{}" + std::string(14, ' ');
  EXPECT_EQ(refusal(file_of(padded)), "");  // exactly file size - 8, no tensors
  EXPECT_NE(refusal(""), "");
  EXPECT_NE(refusal(std::string(7, '\0')), "");
  EXPECT_NE(refusal(prefix_of(0)), "");
  EXPECT_NE(refusal(prefix_of(0) + "{}"), "");
  EXPECT_NE(refusal(std::string(8, '\xFF') + padded), "");
  EXPECT_NE(refusal(prefix_of(std::uint64_t{1} << 63) + padded), "");
  EXPECT_NE(refusal(prefix_of(padded.size() + 1) + padded), "");  // file size - 7
  EXPECT_NE(refusal(prefix_of(100000001) + padded), "");
  EXPECT_NE(refusal(file_of(" {}     ")), "");
  EXPECT_NE(refusal(file_of("[]      ")), "");
  EXPECT_NE(refusal(file_of("{\"\xFF\":1}")), "");
  EXPECT_NE(refusal(file_of("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}")),
            "");
  EXPECT_NE(refusal(file_of("{\"a\":1e999}")), "");
  EXPECT_NE(refusal(file_of(std::string("{}\0\0\0\0\0\0", 8))), "");
}

TEST(Safetensors, b56_shape_dtype_and_range_must_agree) {
  const auto refused = [](const std::string& dtype, const std::string& shape,
                          const std::string& offsets, std::size_t data = 0) {
    return !refusal(file_of(one_tensor(dtype, shape, offsets), std::string(data, '\0'))).empty();
  };
  EXPECT_FALSE(refused("F32", "[2]", "[0,8]", 8));
  EXPECT_FALSE(refused("F32", "[]", "[0,4]", 4));
  EXPECT_FALSE(refused("F32", "[0]", "[0,0]"));
  EXPECT_TRUE(refused("F32", "[1000,1000]", "[0,4]", 4));
  EXPECT_TRUE(refused("F32", "[4294967296,4294967296]", "[0,0]"));
  EXPECT_TRUE(refused("F32", "[4611686018427387904,4]", "[0,0]"));
  EXPECT_TRUE(refused("F32", "[0,4611686018427387904,4]", "[0,4]", 4));
  EXPECT_TRUE(refused("F32", "[-1]", "[0,4]", 4));
  EXPECT_TRUE(refused("F32", "[1.5]", "[0,6]", 6));
  EXPECT_TRUE(refused("F32", "[1e3]", "[0,4000]", 4000));
  EXPECT_TRUE(refused("F32", "[1]", "[8,4]", 8));
  EXPECT_TRUE(refused("F32", "[1]", "[4]", 4));
  EXPECT_TRUE(refused("F32", "[1]", "[0,4,8]", 8));
  EXPECT_TRUE(refused("F32", "[1]", "[-4,0]", 4));
  EXPECT_TRUE(refused("F32", "[1]", "[18446744073709551612,0]", 4));
  EXPECT_TRUE(refused("F33", "[1]", "[0,4]", 4));
  EXPECT_TRUE(refused("F4", "[3]", "[0,2]", 2));
  EXPECT_TRUE(refused("BF16", "[3]", "[0,8]", 8));
  EXPECT_TRUE(refused("F32", "[1,1,1,1,1,1,1]", "[0,4]", 4));
  EXPECT_TRUE(refused("F32", "\"1\"", "[0,4]", 4));
  EXPECT_NE(refusal(file_of(R"({"a":{"dtype":"F32","shape":[1]}})", "0000")), "");
  EXPECT_NE(refusal(file_of(R"({"__metadata__":{"a":1}})")), "");
  EXPECT_NE(refusal(file_of(R"({"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})", "\x02")),
            "");
}

TEST(Safetensors, types_without_an_equal_are_widened_or_refused_by_name) {
  const TempFolder folder;
  const auto open = [&](const std::string& dtype, const std::string& shape,
                        const std::string& data) {
    return SafetensorsFile::open(folder.write(
        "m", file_of(one_tensor(dtype, shape, "[0," + std::to_string(data.size()) + "]"), data)));
  };
  const Tensor u16 = open("U16", "[2]", std::string("\xFF\xFF\x01\x00", 4)).tensor("a");
  EXPECT_EQ(u16.data<std::int32_t>()[0], 65535);
  EXPECT_EQ(u16.data<std::int32_t>()[1], 1);
  const Tensor u32 = open("U32", "[1]", "\xFE\xFF\xFF\xFF").tensor("a");
  EXPECT_EQ(u32.data<std::int64_t>()[0], 4294967294);
  const Tensor u64 = open("U64", "[1]", std::string("\x05\0\0\0\0\0\0\0", 8)).tensor("a");
  EXPECT_EQ(u64.data<std::int64_t>()[0], 5);
  EXPECT_THROW(open("U64", "[1]", std::string("\x05\0\0\0\0\0\0\x80", 8)), ModelError);
  // Values from the definitions of the formats: 448 is E4M3's largest, 57344 E5M2's, 2^-9 and
  // 2^-16 the smallest.
  const auto floats = [&](const std::string& dtype, const std::string& data) {
    const Tensor wide =
        open(dtype, "[" + std::to_string(data.size()) + "]", data).tensor("a").to(DType::kFloat32);
    return std::vector<float>(wide.data<float>(), wide.data<float>() + wide.numel());
  };
  EXPECT_EQ(floats("F8_E4M3", std::string("\x7E\x38\xB8\x01\x00\x44", 6)),
            (std::vector<float>{448, 1, -1, 0.001953125F, 0, 3}));
  EXPECT_TRUE(std::isnan(floats("F8_E4M3", "\x7F")[0]));
  EXPECT_EQ(floats("F8_E5M2", std::string("\x7B\x3C\xBC\x01\x7C", 5)),
            (std::vector<float>{57344, 1, -1, 1.52587890625e-05F, HUGE_VALF}));
  EXPECT_EQ(floats("F8_E8M0", "\x7F\x80"), (std::vector<float>{1, 2}));
  for (const char* dtype : {"F4", "C64", "F6_E2M3", "F8_E4M3FNUZ"}) {
    const std::string data(std::string(dtype) == "C64"  ? 32
                           : std::string(dtype) == "F4" ? 2
                                                        : 3,
                           '\0');
    const std::string count = std::string(dtype) == "F8_E4M3FNUZ" ? "[3]" : "[4]";
    const SafetensorsFile file = open(dtype, count, data);
    EXPECT_TRUE(file.contains("a"));
    EXPECT_EQ(file.unreadable().at("a").dtype, dtype);
    EXPECT_THROW(file.tensor("a"), UnsupportedError) << dtype;
  }
}

TEST(Safetensors, b56_no_holes_and_no_overlaps) {
  const auto two = [](const std::string& a, const std::string& b, std::size_t data) {
    return refusal(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
                               R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}",
                           std::string(data, '\0')));
  };
  EXPECT_EQ(two("[0,4]", "[4,8]", 8), "");
  EXPECT_EQ(two("[4,8]", "[0,4]", 8), "");
  EXPECT_NE(two("[0,4]", "[2,6]", 6), "");
  EXPECT_NE(two("[0,4]", "[0,4]", 4), "");
  EXPECT_NE(two("[0,4]", "[5,9]", 9), "");
  EXPECT_NE(two("[1,5]", "[5,9]", 9), "");
  EXPECT_NE(two("[0,4]", "[4,8]", 9), "");
}

TEST(Safetensors, b58_a_cut_file_is_refused_at_open) {
  const std::string header = one_tensor("F32", "[512,512]", "[0,1048576]");
  const std::string whole = file_of(header, std::string(1 << 20, '\0'));
  EXPECT_EQ(refusal(whole), "");
  for (const std::size_t cut :
       {std::size_t{1}, std::size_t{4}, std::size_t{4096}, std::size_t{1} << 20}) {
    const std::string message = refusal(whole.substr(0, whole.size() - cut));
    EXPECT_NE(message.find("cut off"), std::string::npos) << cut << ": " << message;
  }
}

TEST(Safetensors, b58_saving_over_an_open_file_leaves_its_tensors_alone) {
  const TempFolder folder;
  Tensor ones = Tensor::zeros({5000});
  ones.fill(1);
  save_safetensors(folder / "m", {{"a", ones}});
  const Tensor open = SafetensorsFile::open(folder / "m").tensor("a");
  save_safetensors(folder / "m", {{"a", Tensor::zeros({1})}});
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(open.data<float>()[i], 1.0F);
  EXPECT_EQ(SafetensorsFile::open(folder / "m").tensor("a").numel(), 1);
}

TEST(Safetensors, b59_unaligned_data_is_copied) {
  const std::string values("\x00\x00\x80\x3F\x00\x00\x20\xC0", 8);
  const std::string header = one_tensor("F32", "[2]", "[0,8]");
  ASSERT_EQ(header.size(), 54u);
  // Enough data behind it that the end of the file is no reason for the copy.
  const std::string more =
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"z":{"dtype":"U8","shape":[9000],"data_offsets":[8,9008]}})";
  for (int blanks = 0; blanks < 4; ++blanks) {
    const TempFolder folder;
    for (const std::string& bytes :
         {file_of(header + std::string(blanks, ' '), values),
          file_of(more + std::string(blanks, ' '), values + std::string(9000, 'z'))}) {
      const SafetensorsFile file = SafetensorsFile::open(folder.write("m", bytes));
      const Tensor& a = file.tensor("a");
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.raw()) % 4, 0u);
      EXPECT_EQ(a.data<float>()[0], 1.0F);
      EXPECT_EQ(a.data<float>()[1], -2.5F);
    }
  }
  const TempFolder folder;
  const auto path = folder.write(
      "m",
      file_of(
          R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})",
          "\x07" + values));
  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(file.tensor("a").data<float>()[1], -2.5F);
  EXPECT_EQ(file.tensor("b").data<std::uint8_t>()[0], 7);
}

// Kernels read whole vectors: the bytes behind the last element must be readable, also at the end
// of the map.
TEST(Safetensors, bytes_behind_the_last_element_are_readable) {
  const TempFolder folder;
  for (const std::int64_t count :
       {1, 1000, 1005, 1006, 1007, 1008, 1009, 1010}) {  // some end at the page's end
    save_safetensors(folder / "m", {{"a", Tensor::zeros({count})}});
    const Tensor a = SafetensorsFile::open(folder / "m").tensor("a");
    volatile const char* bytes = static_cast<const char*>(a.raw());
    int sum = 0;
    for (std::size_t i = 0; i < a.nbytes(); ++i) sum += bytes[i];
    EXPECT_EQ(sum, 0);
    if (kSpareBytes > 0) (void)bytes[a.nbytes() + kSpareBytes - 1];
  }
}

TEST(Safetensors, b64_a_full_disk_leaves_the_old_file) {
  const TempFolder folder;
  save_safetensors(folder / "m", {{"a", Tensor::from<float>({1}, {1})}});
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{8192, 8192};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      save_safetensors(folder / "m", {{"a", Tensor::zeros({100000})}});
    } catch (const IoError&) {
      ::_exit(7);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"m"});
  EXPECT_EQ(SafetensorsFile::open(folder / "m").tensor("a").data<float>()[0], 1.0F);
}

}  // namespace
