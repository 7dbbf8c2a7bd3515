#include "server/grammar/schema_formats.h"

#include <regex>

#include "gtest/gtest.h"

namespace runahead {
namespace {

bool Matches(const char* format, const std::string& text) {
  return std::regex_match(text, std::regex(FindSchemaFormat(format)->expression));
}

bool IsLeapYear(int year) {
  return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}

TEST(SchemaFormats, DatesAreThoseOfTheCalendar) {
  constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  for (const int year : {1, 4, 10, 99, 100, 400, 999, 1000, 1900, 1996, 2000, 2023, 2024, 2100, 9996, 9999}) {
    for (int month = 0; month <= 13; ++month) {
      for (int day = 0; day <= 32; ++day) {
        char text[16];
        std::snprintf(text, sizeof(text), "%04d-%02d-%02d", year, month, day);
        const int days = month < 1 || month > 12 ? 0 : kDays[month - 1] + (month == 2 && IsLeapYear(year) ? 1 : 0);
        EXPECT_EQ(Matches("date", text), 1 <= day && day <= days) << text;
      }
    }
  }
  EXPECT_FALSE(Matches("date", "0000-01-01"));
  EXPECT_FALSE(Matches("date", "2023-1-01"));
  EXPECT_FALSE(Matches("date", "x2023-01-01"));
}

TEST(SchemaFormats, TimesHaveAnOffset) {
  for (const char* text : {"00:00:00Z", "23:59:59+00:00", "12:30:00.5-23:59", "12:30:00.123456Z"}) {
    EXPECT_TRUE(Matches("time", text)) << text;
    EXPECT_TRUE(Matches("date-time", std::string("2024-02-29T") + text)) << text;
    EXPECT_FALSE(Matches("date-time", std::string("2023-02-29T") + text)) << text;
  }
  for (const char* text : {"24:00:00Z", "12:60:00Z", "12:00:60Z", "12:00:00", "12:00:00.Z", "12:00:00.1234567Z",
                           "12:00Z", "12:00:00+24:00", "12:00:00z"}) {
    EXPECT_FALSE(Matches("time", text)) << text;
  }
}

TEST(SchemaFormats, NumbersOfAddressesAreBytesWithoutZerosBeforeThem) {
  for (int byte = 0; byte <= 999; ++byte) {
    EXPECT_EQ(Matches("ipv4", "1.22." + std::to_string(byte) + ".0"), byte <= 255) << byte;
  }
  for (const char* text : {"1.2.3", "1.2.3.4.5", "01.2.3.4", "1.2.3.00", "1.2.3.", "a.2.3.4"}) {
    EXPECT_FALSE(Matches("ipv4", text)) << text;
  }
}

TEST(SchemaFormats, AreKnownByName) {
  EXPECT_EQ(FindSchemaFormat("regex"), nullptr);
  for (const SchemaFormat& format : SchemaFormats()) EXPECT_EQ(FindSchemaFormat(format.name), &format);
}

}  // namespace
}  // namespace runahead
