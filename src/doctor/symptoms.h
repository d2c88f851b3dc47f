// From what a user sees to what it may come from. docs/troubleshooting.md is made of this.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace qkv::inline v0::doctor {

struct Cause {
  const char* rule;  // that finds it; null: none looks for it
  const char* what;
  const char* test;    // the one command that tells it from the others
  const char* remedy;  // null: that of the rule
};

struct Symptom {
  const char* name;
  const char* words;              // that people use for it, beside those of the name
  std::span<const Cause> causes;  // the most frequent first
};

// The most frequent first.
std::span<const Symptom> symptoms();

// Those that share most words with `text`, best first; rules whose own symptom does are looked at
// as well. ArgumentError naming all symptoms if none shares any.
std::vector<const Symptom*> find_symptoms(const std::string& text);

std::string remedy_of(const Cause& cause);

// The document, in Markdown.
std::string troubleshooting_page();

}  // namespace qkv::inline v0::doctor
