// The words in certificates are those of docs/LAWS.md.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "certify/report.h"

namespace certify {
namespace {

// The page as one line, so that line breaks do not matter.
std::string Page() {
  std::ifstream file(SHARDPROOF_SOURCE_DIR "/docs/LAWS.md");
  std::string word, text;
  while (file >> word) text += (text.empty() ? "" : " ") + word;
  return text;
}

TEST(LawTextsTest, EqualThePageOfLaws) {
  const std::string page = Page();
  ASSERT_FALSE(page.empty());
  for (const char letter : {'S', 'R', 'V'})
    for (const std::string_view law : LawNumbers(letter)) {
      const LawText& text = TextOf(law);
      const std::string heading = "### " + std::string(law) + " " + std::string(text.title);
      EXPECT_NE(page.find(heading), std::string::npos) << heading;
      EXPECT_NE(page.find("Covers: " + std::string(text.covers)), std::string::npos) << law;
      EXPECT_NE(page.find("Does not cover: " + std::string(text.does_not_cover)), std::string::npos)
          << law;
      EXPECT_NE(page.find("Unit: " + std::string(text.unit) + "."), std::string::npos) << law;
    }
}

}  // namespace
}  // namespace certify
