// Trains a tokenizer on the lines of stdin, for comparisons with other programs:
//   train_tokenizer char|bpe|wordpiece VOCAB_SIZE lower|keep FOLDER
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "qkv/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(
        stderr, "usage: train_tokenizer char|bpe|wordpiece VOCAB_SIZE lower|keep FOLDER < LINES\n");
    return 2;
  }
  try {
    const std::string kind = argv[1];
    qkv::TokenizerOptions options;
    options.kind = kind == "char"  ? qkv::TokenizerKind::kChar
                   : kind == "bpe" ? qkv::TokenizerKind::kBpe
                                   : qkv::TokenizerKind::kWordPiece;
    options.vocab_size = std::stoll(argv[2]);
    options.lowercase = std::string(argv[3]) == "lower";
    std::vector<std::string> texts;
    for (std::string line; std::getline(std::cin, line);) texts.push_back(line);
    qkv::Tokenizer::train(texts, options).save(argv[4]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
