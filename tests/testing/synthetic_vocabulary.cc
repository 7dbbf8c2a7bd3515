// The vocabulary of synthetic checkpoints.
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/synthetic_gguf.h"

namespace runahead {
namespace {

constexpr int32_t kNormal = 1;
constexpr int32_t kControl = 3;

// The byte-level alphabet: printable bytes of Latin-1 stand for themselves, the others for U+0100 and up, in order.
std::vector<std::string> ByteAlphabet() {
  std::vector<std::string> alphabet;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const int character = printable ? byte : next++;
    if (character < 0x80) {
      alphabet.emplace_back(1, static_cast<char>(character));
    } else {
      alphabet.push_back({static_cast<char>(0xc0 | character >> 6), static_cast<char>(0x80 | (character & 0x3f))});
    }
  }
  return alphabet;
}

// Merges that make common English pieces one token; "\u0120" is the blank in the byte-level alphabet.
constexpr const char* kMerges[] = {"\u0120 t", "h e",           "i n",      "e r",      "a n",       "o n",
                                   "r e",      "\u0120t he",    "\u0120 a", "o r",      "\u0120a n", "\u0120an d",
                                   "in g",     "\u0120 \u0120", "l l",      "\u0120 o", "\u0120o f", "e n",
                                   "i s",      "\u0120 i",      "\u0120i n"};

}  // namespace

SyntheticVocabulary MakeSyntheticVocabulary(int64_t size) {
  SyntheticVocabulary vocabulary;
  const size_t wanted = static_cast<size_t>(size);
  std::set<std::string> known;
  const auto add = [&](const std::string& token, int32_t type) {
    if (vocabulary.tokens.size() >= wanted || !known.insert(token).second) return false;
    vocabulary.tokens.push_back(token);
    vocabulary.types.push_back(type);
    return true;
  };
  const auto merge = [&](const std::string& left, const std::string& right) {
    if (add(left + right, kNormal)) vocabulary.merges.push_back(absl::StrCat(left, " ", right));
  };

  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) add(special, kControl);
  for (const std::string& byte : ByteAlphabet()) add(byte, kNormal);
  for (const std::string pair : kMerges) merge(pair.substr(0, pair.find(' ')), pair.substr(pair.find(' ') + 1));
  // Then ever longer words over the small letters, each a shorter one and one letter more.
  std::vector<std::string> words;
  for (char letter = 'a'; letter <= 'z'; ++letter) words.emplace_back(1, letter);
  for (size_t i = 0; vocabulary.tokens.size() < wanted; ++i) {
    for (char letter = 'a'; letter <= 'z' && vocabulary.tokens.size() < wanted; ++letter) {
      merge(words[i], std::string(1, letter));
      words.push_back(words[i] + letter);
    }
  }
  return vocabulary;
}

std::string SyntheticChatTemplate() {
  return "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
         "{{ '<|im_start|>system\nYou are a synthetic model.<|im_end|>\n' }}{% endif %}"
         "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
}

}  // namespace runahead
