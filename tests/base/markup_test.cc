#include "base/markup.h"

#include <gtest/gtest.h>

using namespace qkv;

TEST(Markup, characters_with_a_meaning_become_entities) {
  EXPECT_EQ(escape_markup("<a href=\"x\">R&D's 到</a>"),
            "&lt;a href=&quot;x&quot;&gt;R&amp;D&#39;s 到&lt;/a&gt;");
}

TEST(Markup, what_xml_forbids_becomes_a_space) {
  EXPECT_EQ(escape_markup(std::string_view("a\0b\x1b\nc\td", 8)), "a b \nc\td");
}
