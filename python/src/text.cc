// Tokenizers.
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "qkv/tokenizer.h"

#include "arrays.h"
#include "base/check.h"
#include "base/thread_pool.h"
#include "bindings.h"

namespace nb = nanobind;

namespace qkv::python {
namespace {

// Text as UTF-8. Lone surrogates, which no UTF-8 holds, are refused like bytes that are not UTF-8.
std::string text_of(nb::handle object) {
  if (!PyUnicode_Check(object.ptr())) {
    type_error(fmt::format("[tokenizer] expected text as str, got {}",
                           nb::type_name(object.type()).c_str()));
  }
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (bytes == nullptr) {
    PyErr_Clear();
    fail<DataError>("tokenizer", "expected text that UTF-8 can hold, got a lone surrogate in {}",
                    nb::repr(object).c_str());
  }
  return {bytes, static_cast<std::size_t>(size)};
}

std::vector<std::int32_t> ids_of(nb::handle object) {
  std::vector<std::int32_t> ids;
  if (PyObject_CheckBuffer(object.ptr()) || nb::hasattr(object, "__dlpack__")) {
    const Array array = import_array(object, "tokenizer", "ids");
    require<ShapeError>(array.rank() == 1 && !is_floating(array.dtype), "tokenizer",
                        "expected ids as whole numbers of shape [T], got {} {}",
                        dtype_name(array.dtype), array.shape_text());
    const Tensor wide = array.tensor().to(DType::kInt64).contiguous();
    for (std::int64_t i = 0; i < wide.numel(); ++i) {
      const std::int64_t id = wide.data<std::int64_t>()[i];
      require<ArgumentError>(id == static_cast<std::int32_t>(id), "tokenizer",
                             "expected ids of the vocabulary, got {}", id);
      ids.push_back(static_cast<std::int32_t>(id));
    }
    return ids;
  }
  if (!nb::try_cast(object, ids)) {
    type_error(
        fmt::format("[tokenizer] expected ids as whole numbers, got {}", nb::repr(object).c_str()));
  }
  return ids;
}

std::vector<Encoding> encode_all(const Tokenizer& tokenizer, const nb::iterable& texts,
                                 const EncodeOptions& options) {
  if (PyUnicode_Check(texts.ptr())) {
    type_error("[tokenizer] expected several texts, got one str: put it in a list, or use encode");
  }
  std::vector<std::string> all;
  for (const nb::handle text : texts) all.push_back(text_of(text));
  std::vector<Encoding> encodings(all.size());
  const nb::gil_scoped_release no_gil;
  parallel_for(static_cast<std::int64_t>(all.size()), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    encodings[at] = tokenizer.encode(all[at], options);
  });
  return encodings;
}

TokenizerKind kind_of(const std::string& name) {
  if (name == "char") return TokenizerKind::kChar;
  if (name == "bpe") return TokenizerKind::kBpe;
  if (name == "wordpiece") return TokenizerKind::kWordPiece;
  fail<ArgumentError>("tokenizer", "expected kind 'char', 'bpe' or 'wordpiece', got '{}'", name);
}

Tokenizer train(const nb::iterable& texts, const std::string& kind, std::int64_t vocab_size,
                std::int64_t min_frequency, bool lowercase) {
  std::vector<std::string> all;
  for (const nb::handle text : texts) all.push_back(text_of(text));
  TokenizerOptions options;
  options.kind = kind_of(kind);
  options.vocab_size = vocab_size;
  options.min_frequency = min_frequency;
  options.lowercase = lowercase;
  const nb::gil_scoped_release no_gil;
  return Tokenizer::train(all, options);
}

void bind_encoding(nb::module_& m) {
  nb::class_<Encoding>(m, "Encoding",
                       "One text as token ids, with the pieces and where they come from.")
      .def_ro("ids", &Encoding::ids)
      .def_ro("tokens", &Encoding::tokens, "Pieces as in the vocabulary.")
      .def_ro("offsets", &Encoding::offsets,
              "(start, end) in characters of the text; (0, 0) for tokens that were added.")
      .def("__len__", [](const Encoding& e) { return e.ids.size(); })
      .def("__repr__",
           [](const Encoding& e) { return fmt::format("qkv.Encoding({} tokens)", e.ids.size()); });
}

}  // namespace

void bind_text(nb::module_& m) {
  bind_encoding(m);
  nb::class_<Tokenizer>(m, "Tokenizer",
                        "Text to token ids and back. Immutable; usable from several threads.")
      .def_static("load", &Tokenizer::load, nb::arg("folder"),
                  nb::call_guard<nb::gil_scoped_release>(),
                  "From tokenizer.json in a folder, or that file itself.")
      .def_static("train", &train, nb::arg("texts"), nb::kw_only(), nb::arg("kind") = "bpe",
                  nb::arg("vocab_size") = 3000, nb::arg("min_frequency") = 2,
                  nb::arg("lowercase") = false,
                  "Learns a vocabulary from texts; kind is 'char', 'bpe' or 'wordpiece'.")
      .def("save", &Tokenizer::save, nb::arg("folder"), "Writes tokenizer.json to a folder.")
      .def(
          "encode",
          [](const Tokenizer& t, nb::handle text, bool special, bool parse) {
            return t.encode(text_of(text), {special, parse, true, false, {}, {}});
          },
          nb::arg("text"), nb::kw_only(), nb::arg("add_special_tokens") = true,
          nb::arg("parse_special") = true,
          "parse_special: special tokens written in the text become their ids.")
      .def(
          "encode_batch",
          [](const Tokenizer& t, const nb::iterable& texts, bool special, bool parse) {
            return encode_all(t, texts, {special, parse, true, false, {}, {}});
          },
          nb::arg("texts"), nb::kw_only(), nb::arg("add_special_tokens") = true,
          nb::arg("parse_special") = true, "encode for each text, on all threads.")
      .def(
          "decode",
          [](const Tokenizer& t, nb::handle ids, bool skip) { return t.decode(ids_of(ids), skip); },
          nb::arg("ids"), nb::kw_only(), nb::arg("skip_special_tokens") = true)
      .def_prop_ro("vocab_size", &Tokenizer::vocab_size)
      .def("__len__", &Tokenizer::vocab_size)
      .def("token_to_id", &Tokenizer::token_id, nb::arg("token"), "None for a token that it lacks.")
      .def("id_to_token", &Tokenizer::token, nb::arg("id"))
      .def("special_id", &Tokenizer::special_id, nb::arg("role"),
           "Id of 'pad', 'unk', 'cls', 'sep' or 'mask', or None.")
      .def("__repr__", [](const Tokenizer& t) {
        return fmt::format("qkv.Tokenizer({} tokens)", t.vocab_size());
      });
}

}  // namespace qkv::python
