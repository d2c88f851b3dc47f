// Properties of JSON that hold for every value.
#include <cmath>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "base/json.h"

namespace {
using namespace qkv;

// A valid string of any code points.
std::string any_text() {
  const auto chars = *rc::gen::container<std::vector<std::uint32_t>>(
      rc::gen::suchThat(rc::gen::oneOf(rc::gen::inRange<std::uint32_t>(0, 0x80),
                                       rc::gen::inRange<std::uint32_t>(0, 0x110000)),
                        [](std::uint32_t c) { return c < 0xD800 || c > 0xDFFF; }));
  std::string text;
  for (const std::uint32_t c : chars) {
    if (c < 0x80) {
      text += static_cast<char>(c);
    } else {
      const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
      text += static_cast<char>((0xFF00 >> (more + 1)) | (c >> (6 * more)));
      for (int i = more - 1; i >= 0; --i) text += static_cast<char>(0x80 | (c >> (6 * i) & 0x3F));
    }
  }
  return text;
}

Json any_json(int depth) {
  switch (*rc::gen::inRange(0, depth > 0 ? 8 : 5)) {
    case 0:
      return {};
    case 1:
      return *rc::gen::arbitrary<bool>();
    case 2:
      return *rc::gen::arbitrary<std::int64_t>();
    case 3: {
      const auto value = *rc::gen::arbitrary<double>();
      return std::isfinite(value) ? Json(value) : Json(0.1);
    }
    case 4:
      return any_text();
    case 5:
    case 6: {
      Json array = Json::array();
      for (int n = *rc::gen::inRange(0, 4); n > 0; --n) array.push_back(any_json(depth - 1));
      return array;
    }
    default: {
      Json object = Json::object();
      for (int n = *rc::gen::inRange(0, 4); n > 0; --n) object[any_text()] = any_json(depth - 1);
      return object;
    }
  }
}

RC_GTEST_PROP(JsonProperties, a_dumped_value_reads_back_equal, ()) {
  const Json value = any_json(3);
  RC_ASSERT(Json::parse(value.dump()) == value);
  RC_ASSERT(Json::parse(value.dump(2)) == value);
}

RC_GTEST_PROP(JsonProperties, a_cut_document_is_refused, ()) {
  Json value = Json::array();
  value.push_back(any_json(2));
  const std::string text = value.dump();
  const auto size = *rc::gen::inRange<std::size_t>(0, text.size());
  RC_ASSERT_THROWS_AS(Json::parse(text.substr(0, size)), DataError);
}

RC_GTEST_PROP(JsonProperties, blanks_do_not_matter, ()) {
  const Json value = any_json(2);
  RC_ASSERT(Json::parse(" \n\t\r" + value.dump(*rc::gen::inRange(0, 8)) + " \n") == value);
}

}  // namespace
