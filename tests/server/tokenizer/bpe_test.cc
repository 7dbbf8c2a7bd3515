#include "server/tokenizer/bpe.h"

#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/tokenizer/byte_alphabet.h"
#include "tests/testing/synthetic_gguf.h"

namespace runahead {
namespace {

using testing::ElementsAre;

// Over bytes: tokens are written in the byte alphabet, merges are "left right" by rank.
Bpe Build(const std::vector<std::string>& tokens, const std::vector<std::string>& pairs) {
  TokenIds ids;
  for (size_t id = 0; id < tokens.size(); ++id) ids.emplace(tokens[id], static_cast<int32_t>(id));
  Fallback bytes;
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(ByteToAlphabet(static_cast<unsigned char>(byte)));
    bytes.byte_ids[static_cast<size_t>(byte)] = found == ids.end() ? -1 : found->second;
  }
  std::vector<Merge> merges;
  for (const std::string& pair : pairs) merges.push_back(*MergeOf(ids, pair));
  return Bpe(merges, {}, bytes);
}

std::vector<int32_t> Encode(const Bpe& bpe, std::string_view word) {
  std::vector<int32_t> ids;
  Steps steps(Always);
  EXPECT_TRUE(bpe.Encode(word, steps, ids).ok());
  return ids;
}

TEST(ByteAlphabet, EveryByteComesBack) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string one = ByteToAlphabet(static_cast<unsigned char>(byte));
    EXPECT_EQ(AlphabetToBytes(one), std::string(1, static_cast<char>(byte)));
    all += one;
  }
  EXPECT_EQ(AlphabetToBytes(all).size(), 256u);
  EXPECT_EQ(ByteToAlphabet(' '), "\u0120");
  EXPECT_EQ(ByteToAlphabet('\n'), "\u010a");
  EXPECT_EQ(ByteToAlphabet(0xad), "\u0143");
}

TEST(ByteAlphabet, WhatIsOutsideStandsForItself) {
  for (const std::string token : {"你好", "a b", "\u0144", "\xc4", "a\xff"}) EXPECT_EQ(AlphabetToBytes(token), token);
}

TEST(Bpe, LowestRankFirstThenLeftmost) {
  const Bpe bpe = Build({"a", "b", "c", "bc", "ab", "aa"}, {"b c", "a b", "a a"});
  EXPECT_THAT(Encode(bpe, "abc"), ElementsAre(0, 3));  // not ab c
  EXPECT_THAT(Encode(bpe, "aaa"), ElementsAre(5, 0));
  EXPECT_THAT(Encode(bpe, "aaaa"), ElementsAre(5, 5));
  EXPECT_THAT(Encode(bpe, ""), ElementsAre());
}

TEST(Bpe, BytesWithoutTokenAreLeftOutBeforeMerging) {
  const Bpe bpe = Build({"a", "b", "ab"}, {"a b"});
  EXPECT_THAT(Encode(bpe, "aXb"), ElementsAre(2));
  EXPECT_THAT(Encode(bpe, "X"), ElementsAre());
}

// Over characters: a, é and 你 have tokens, and "aé" by a merge.
Bpe OverCharacters(const Fallback& fallback) {
  const Merge merges[] = {{0, 1, 3}};
  return Bpe(merges, {{'a', 0}, {0xe9, 1}, {0x4f60, 2}}, fallback);
}

Fallback NoBytes(int32_t unknown, bool fuse) {
  Fallback fallback = {{}, unknown, fuse};
  fallback.byte_ids.fill(-1);
  return fallback;
}

TEST(Bpe, CharactersMergeAsBytesDo) {
  EXPECT_THAT(Encode(OverCharacters(NoBytes(9, false)), "aé你aéa"), ElementsAre(3, 2, 3, 0));
}

TEST(Bpe, CharactersWithoutTokenAreUnknown) {
  EXPECT_THAT(Encode(OverCharacters(NoBytes(9, false)), "xya"), ElementsAre(9, 9, 0));
  EXPECT_THAT(Encode(OverCharacters(NoBytes(9, true)), "xyazé"), ElementsAre(9, 0, 9, 1));
  EXPECT_THAT(Encode(OverCharacters(NoBytes(-1, true)), "xayé"), ElementsAre(3));  // left out before merging
  EXPECT_THAT(Encode(OverCharacters(NoBytes(9, false)), "a\xff\xe4\xbd"), ElementsAre(0, 9, 9));
}

TEST(Bpe, CharactersWithoutTokenAreTheirBytesWhereAllOfThemHaveTokens) {
  Fallback fallback = NoBytes(9, true);
  fallback.byte_ids[0xc3] = 20;
  fallback.byte_ids[0xa8] = 21;
  fallback.byte_ids[0xff] = 22;
  EXPECT_THAT(Encode(OverCharacters(fallback), "aèé"), ElementsAre(0, 20, 21, 1));
  EXPECT_THAT(Encode(OverCharacters(fallback), "aêa"), ElementsAre(0, 9, 0));  // C3 AA: the second has none
  EXPECT_THAT(Encode(OverCharacters(fallback), "a\xff\xffé"), ElementsAre(0, 22, 22, 1));
}

// The definition, at leisure: scan for the best pair until there is none.
std::vector<int32_t> Reference(const SyntheticVocabulary& vocabulary, const std::string& word) {
  std::vector<std::string> symbols;
  for (char byte : word) symbols.push_back(ByteToAlphabet(static_cast<unsigned char>(byte)));
  while (true) {
    size_t best_rank = vocabulary.merges.size();
    size_t best = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (vocabulary.merges[rank] == symbols[i] + " " + symbols[i + 1]) {
          best_rank = rank;
          best = i;
        }
      }
    }
    if (best_rank == vocabulary.merges.size()) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<int64_t>(best) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& symbol : symbols) {
    for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
      if (vocabulary.tokens[id] == symbol) ids.push_back(static_cast<int32_t>(id));
    }
  }
  return ids;
}

TEST(Bpe, AgreesWithTheDefinitionOnRandomWords) {
  const SyntheticVocabulary vocabulary = MakeSyntheticVocabulary(450);
  const Bpe bpe = Build(vocabulary.tokens, vocabulary.merges);
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::string word;
    for (size_t n = random() % 16; n > 0; --n) word += " theinaorgf"[random() % 11];
    EXPECT_EQ(Encode(bpe, word), Reference(vocabulary, word)) << word;
  }
}

// Quadratic merging would take minutes here and run into the test's time limit.
TEST(Bpe, AMegabyteInOneWord) {
  const SyntheticVocabulary vocabulary = MakeSyntheticVocabulary(2000);
  const Bpe bpe = Build(vocabulary.tokens, vocabulary.merges);
  std::string word;
  while (word.size() < (1 << 20)) word += "aatheb";
  const std::vector<int32_t> ids = Encode(bpe, word);
  std::string back;
  for (int32_t id : ids) back += AlphabetToBytes(vocabulary.tokens[static_cast<size_t>(id)]);
  EXPECT_EQ(back, word);
}

}  // namespace
}  // namespace runahead
