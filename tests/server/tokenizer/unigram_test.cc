#include "server/tokenizer/unigram.h"

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using testing::ElementsAre;

struct UnigramPieces {
  std::vector<std::string> pieces;
  std::vector<double> scores;
  Fallback fallback;

  UnigramPieces(std::vector<std::string> texts, std::vector<double> of)
      : pieces(std::move(texts)), scores(std::move(of)) {
    fallback.byte_ids.fill(-1);
    fallback.unknown = 99;
    fallback.fuse_unknown = true;
  }

  std::vector<int32_t> Encode(std::string_view word) const {
    const std::vector<std::string_view> views(pieces.begin(), pieces.end());
    const double lowest = *std::min_element(scores.begin(), scores.end());
    std::vector<int32_t> ids;
    Steps steps(Always);
    EXPECT_TRUE(Unigram(views, scores, lowest, fallback).Encode(word, steps, ids).ok());
    return ids;
  }
};

TEST(Unigram, TheGreatestSumWins) {
  const UnigramPieces pieces({"a", "b", "ab", "aba"}, {-1, -1, -3, -2.5});
  EXPECT_THAT(pieces.Encode("ab"), ElementsAre(0, 1));
  EXPECT_THAT(pieces.Encode("aba"), ElementsAre(3));
  EXPECT_THAT(pieces.Encode(""), ElementsAre());
}

TEST(Unigram, OfEqualSumsTheFirstFoundStays) {
  // The whole is found from where it begins, before the second of two.
  EXPECT_THAT(UnigramPieces({"a", "b", "ab"}, {-1, -1, -2}).Encode("ab"), ElementsAre(2));
}

TEST(Unigram, ACharacterWithoutTokenCostsTenMoreThanTheDearest) {
  EXPECT_THAT(UnigramPieces({"xa", "b", "ab"}, {-15, -10, -1}).Encode("xab"), ElementsAre(0, 1));   // -25, not -26
  EXPECT_THAT(UnigramPieces({"xa", "b", "ab"}, {-15, -12, -1}).Encode("xab"), ElementsAre(99, 2));  // -26, not -27
}

TEST(Unigram, UnknownCharactersFuse) {
  UnigramPieces pieces({"a", "é"}, {-1, -1});
  EXPECT_THAT(pieces.Encode("xyaé你z"), ElementsAre(99, 0, 1, 99));
  pieces.fallback.fuse_unknown = false;
  EXPECT_THAT(pieces.Encode("xya"), ElementsAre(99, 99, 0));
  pieces.fallback.unknown = -1;
  EXPECT_THAT(pieces.Encode("xya"), ElementsAre(0));
}

TEST(Unigram, UnknownCharactersAreTheirBytesWhereAllOfThemHaveTokens) {
  UnigramPieces pieces({"a"}, {-1});
  pieces.fallback.byte_ids[0xc3] = 50;
  pieces.fallback.byte_ids[0xa8] = 51;
  EXPECT_THAT(pieces.Encode("aèaê"), ElementsAre(0, 50, 51, 0, 99));
  EXPECT_THAT(pieces.Encode("\xc3\xc3"), ElementsAre(50, 50));  // a word of no characters
}

TEST(Unigram, APieceThatEndsInsideOfACharacterIsNone) {
  EXPECT_THAT(UnigramPieces({"a\xc3", "a"}, {10, -1}).Encode("aé"), ElementsAre(1, 99));
}

// All ways to cut, by recursion.
double BestScore(const UnigramPieces& pieces, std::string_view word) {
  if (word.empty()) return 0;
  double best = -std::numeric_limits<double>::infinity();
  for (size_t id = 0; id < pieces.pieces.size(); ++id) {
    const std::string& piece = pieces.pieces[id];
    if (word.substr(0, piece.size()) != piece) continue;
    best = std::max(best, pieces.scores[id] + BestScore(pieces, word.substr(piece.size())));
  }
  return best;
}

TEST(Unigram, AgreesWithAllWaysToCut) {
  std::mt19937 random(4);
  UnigramPieces pieces({"a", "b", "c"}, {-5, -6, -7});
  while (pieces.pieces.size() < 40) {
    std::string piece;
    for (size_t n = 2 + random() % 3; n > 0; --n) piece += "abc"[random() % 3];
    if (std::find(pieces.pieces.begin(), pieces.pieces.end(), piece) != pieces.pieces.end()) continue;
    pieces.pieces.push_back(piece);
    pieces.scores.push_back(-static_cast<double>(random() % 1000) / 64);
  }
  for (int round = 0; round < 200; ++round) {
    std::string word, joined;
    for (size_t n = random() % 12; n > 0; --n) word += "abc"[random() % 3];
    double score = 0;
    for (const int32_t id : pieces.Encode(word)) {
      joined += pieces.pieces[static_cast<size_t>(id)];
      score += pieces.scores[static_cast<size_t>(id)];
    }
    EXPECT_EQ(joined, word);
    EXPECT_DOUBLE_EQ(score, BestScore(pieces, word)) << word;
  }
}

// Quadratic work would take minutes here and run into the test's time limit.
TEST(Unigram, AMegabyteInOneWord) {
  UnigramPieces pieces({"a"}, {-1});
  for (size_t n = 2; n < 100; ++n) {
    pieces.pieces.push_back(std::string(n, 'a'));
    pieces.scores.push_back(-1 - static_cast<double>(n) / 1000);
  }
  EXPECT_EQ(pieces.Encode(std::string(990000, 'a')).size(), 10000u);
}

}  // namespace
}  // namespace runahead
