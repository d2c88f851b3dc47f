// The pre-tokenizer that cuts where the script changes (Hugging Face's "UnicodeScripts").
#include <optional>
#include <string>

#include "base/check.h"
#include "text/pattern.h"
#include "text/pre_tokenizer.h"

namespace qkv::inline v0::text {
namespace {

// By Unicode's names; Han, Hiragana and Katakana count as one and stand apart.
constexpr const char* kScripts[] = {"Common",
                                    "Inherited",
                                    "Latin",
                                    "Greek",
                                    "Cyrillic",
                                    "Armenian",
                                    "Hebrew",
                                    "Arabic",
                                    "Syriac",
                                    "Thaana",
                                    "Devanagari",
                                    "Bengali",
                                    "Gurmukhi",
                                    "Gujarati",
                                    "Oriya",
                                    "Tamil",
                                    "Telugu",
                                    "Kannada",
                                    "Malayalam",
                                    "Sinhala",
                                    "Thai",
                                    "Lao",
                                    "Tibetan",
                                    "Myanmar",
                                    "Georgian",
                                    "Hangul",
                                    "Ethiopic",
                                    "Cherokee",
                                    "Canadian_Aboriginal",
                                    "Ogham",
                                    "Runic",
                                    "Khmer",
                                    "Mongolian",
                                    "Bopomofo",
                                    "Yi",
                                    "Old_Italic",
                                    "Gothic",
                                    "Deseret",
                                    "Tagalog",
                                    "Hanunoo",
                                    "Buhid",
                                    "Tagbanwa",
                                    "Limbu",
                                    "Tai_Le",
                                    "Linear_B",
                                    "Ugaritic",
                                    "Shavian",
                                    "Osmanya",
                                    "Cypriot",
                                    "Braille",
                                    "Buginese",
                                    "Coptic",
                                    "New_Tai_Lue",
                                    "Glagolitic",
                                    "Tifinagh",
                                    "Syloti_Nagri",
                                    "Old_Persian",
                                    "Kharoshthi",
                                    "Balinese",
                                    "Cuneiform",
                                    "Phoenician",
                                    "Phags_Pa",
                                    "Nko",
                                    "Sundanese",
                                    "Lepcha",
                                    "Ol_Chiki",
                                    "Vai",
                                    "Saurashtra",
                                    "Kayah_Li",
                                    "Rejang",
                                    "Lycian",
                                    "Carian",
                                    "Lydian",
                                    "Cham",
                                    "Tai_Tham",
                                    "Tai_Viet",
                                    "Avestan",
                                    "Egyptian_Hieroglyphs",
                                    "Samaritan",
                                    "Lisu",
                                    "Bamum",
                                    "Javanese",
                                    "Meetei_Mayek",
                                    "Imperial_Aramaic",
                                    "Old_South_Arabian",
                                    "Inscriptional_Parthian",
                                    "Inscriptional_Pahlavi",
                                    "Old_Turkic",
                                    "Kaithi",
                                    "Batak",
                                    "Brahmi",
                                    "Mandaic",
                                    "Chakma",
                                    "Meroitic_Cursive",
                                    "Meroitic_Hieroglyphs",
                                    "Miao",
                                    "Sharada",
                                    "Sora_Sompeng",
                                    "Takri",
                                    "Caucasian_Albanian",
                                    "Bassa_Vah",
                                    "Duployan",
                                    "Elbasan",
                                    "Grantha",
                                    "Khojki",
                                    "Khudawadi",
                                    "Linear_A",
                                    "Mahajani",
                                    "Manichaean",
                                    "Mende_Kikakui",
                                    "Modi",
                                    "Mro",
                                    "Nabataean",
                                    "Old_North_Arabian",
                                    "Old_Permic",
                                    "Pahawh_Hmong",
                                    "Palmyrene",
                                    "Pau_Cin_Hau",
                                    "Psalter_Pahlavi",
                                    "Siddham",
                                    "Tirhuta",
                                    "Warang_Citi",
                                    "Ahom",
                                    "Anatolian_Hieroglyphs",
                                    "Hatran",
                                    "Multani",
                                    "Old_Hungarian",
                                    "SignWriting",
                                    "Adlam",
                                    "Bhaiksuki",
                                    "Marchen",
                                    "Newa",
                                    "Osage",
                                    "Tangut"};

// One alternative a script: its characters, with what belongs to any (blanks, unassigned ones)
// among them.
std::string runs_of_scripts() {
  const auto run = [](const std::string& chars) {
    return "[" + chars + "][" + chars + " \\p{Cn}]*+";
  };
  std::string pattern = run("\\p{sc:Han}\\p{sc:Hiragana}\\p{sc:Katakana}\\x{30FC}");
  for (const char* script : kScripts) {
    pattern += '|';
    // U+30FC is of the script Common, a blank too.
    const std::string chars = std::string("\\p{sc:") + script + "}";
    const bool common = std::string_view(script) == "Common";
    pattern += common ? "(?![ \\x{30FC}])" + chars + "(?:(?!\\x{30FC})[" + chars + " \\p{Cn}])*+"
                      : run(chars);
  }
  return pattern;
}

class UnicodeScripts : public WordSplitter {
 public:
  UnicodeScripts() : pattern_(Pattern::regex(runs_of_scripts())) {}
  // Blanks before the first run are left out, as in the reference implementation.
  void cut(std::string_view text, std::vector<Span>& words) const override {
    std::vector<Span> runs;
    pattern_.find_all(text, runs);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const bool last = i + 1 == runs.size();
      words.push_back(
          {runs[i].begin, last ? static_cast<std::uint32_t>(text.size()) : runs[i + 1].begin});
    }
  }

 private:
  Pattern pattern_;
};

}  // namespace

std::unique_ptr<const PreTokenizer> make_unicode_scripts() {
  return std::make_unique<UnicodeScripts>();
}

}  // namespace qkv::inline v0::text
