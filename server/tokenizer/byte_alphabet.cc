#include "server/tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

namespace runahead {
namespace {

// Printable bytes of Latin-1 stand for themselves; the others, in order, for the characters from U+0100 on.
struct Tables {
  std::array<uint16_t, 256> character;
  std::array<int16_t, 0x144> byte;  // by character; -1 outside the alphabet

  constexpr Tables() : character(), byte() {
    for (int16_t& entry : byte) entry = -1;
    uint16_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
      character[b] = printable ? static_cast<uint16_t>(b) : next++;
      byte[character[b]] = static_cast<int16_t>(b);
    }
  }
};
constexpr Tables kTables;

}  // namespace

std::string ByteToAlphabet(unsigned char byte) {
  const uint16_t character = kTables.character[byte];
  if (character < 0x80) return std::string(1, static_cast<char>(character));
  return {static_cast<char>(0xc0 | character >> 6), static_cast<char>(0x80 | (character & 0x3f))};
}

std::string AlphabetToBytes(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size(); ++i) {
    uint32_t character = static_cast<unsigned char>(token[i]);
    if (character >= 0x80) {
      // The whole alphabet is below U+0800: lead byte C2 to DF, one more byte.
      if (character < 0xc2 || character > 0xdf || i + 1 == token.size()) return std::string(token);
      const uint32_t second = static_cast<unsigned char>(token[++i]);
      if ((second & 0xc0) != 0x80) return std::string(token);
      character = (character & 0x1f) << 6 | (second & 0x3f);
    }
    if (character >= kTables.byte.size() || kTables.byte[character] < 0) return std::string(token);
    bytes.push_back(static_cast<char>(kTables.byte[character]));
  }
  return bytes;
}

}  // namespace runahead
