#include "fuzz.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace fuzz {
namespace {

// What parsers stumble over.
constexpr std::array<std::string_view, 32> stones = {"0",
                                                     "1",
                                                     "-1",
                                                     "4294967296",
                                                     "9223372036854775807",
                                                     "9223372036854775808",
                                                     "18446744073709551615",
                                                     "18446744073709551616",
                                                     "65536",
                                                     "65537",
                                                     "999999999999999999999999",
                                                     " ",
                                                     "\n",
                                                     "\r\n",
                                                     "\t",
                                                     "%",
                                                     "%0",
                                                     "%00",
                                                     "%2D",
                                                     "=",
                                                     "-",
                                                     "o 0 0 r 1\nx\n",
                                                     "e 0 0 b 1\neA==\n",
                                                     "gap pos=0 n=5 out=5 err=0\n",
                                                     "more why=superseded pos=0\n",
                                                     "deepinfra-shim/1 run\n",
                                                     "\"",
                                                     "\\",
                                                     "\\u0000",
                                                     "\\ud83d",
                                                     "\xff",
                                                     std::string_view("\0", 1)};

std::size_t place(chance& by, const std::string& text) {
    return by.below(text.size() + 1);
}

// The beginning of a random line and its length with the newline.
std::pair<std::size_t, std::size_t> random_line(chance& by, const std::string& text) {
    const std::size_t at = place(by, text);
    const std::size_t before = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
    const std::size_t begin = before == std::string::npos ? 0 : before + 1;
    const std::size_t newline = text.find('\n', begin);
    return {begin, (newline == std::string::npos ? text.size() : newline + 1) - begin};
}

void change_number(chance& by, std::string& text) {
    const std::size_t begin = text.find_first_of("0123456789", place(by, text));
    if (begin == std::string::npos) {
        return;
    }
    const std::size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
    std::string changed;
    if (by.one_in(2) && end - begin < 18) {
        changed = std::to_string(std::stoull(text.substr(begin, end - begin)) + by.below(5) - 2);
    } else {
        changed = by.of(stones);
    }
    text.replace(begin, end - begin, changed);
}

void change(chance& by, std::string& text, const std::vector<std::string>& others) {
    const std::size_t at = place(by, text);
    switch (by.below(9)) {
    case 0:
        if (at < text.size()) {
            text[at] = static_cast<char>(by.number());
        }
        break;
    case 1:
        text.erase(at, 1 + by.below(8));
        break;
    case 2:
        text.insert(at, by.of(stones));
        break;
    case 3:
        change_number(by, text);
        break;
    case 4: { // a line again, elsewhere
        const auto [begin, length] = random_line(by, text);
        text.insert(random_line(by, text).first, text.substr(begin, length));
        break;
    }
    case 5: { // a line less
        const auto [begin, length] = random_line(by, text);
        text.erase(begin, length);
        break;
    }
    case 6: { // a piece of another one
        const std::string& other = by.of(others);
        const auto [begin, length] = random_line(by, other);
        text.insert(random_line(by, text).first, other.substr(begin, length));
        break;
    }
    case 7:
        text.resize(at);
        break;
    default:
        text.insert(at, by.below(5000), static_cast<char>(by.number()));
    }
}

} // namespace

const std::vector<std::string>& seeds() {
    static const std::vector<std::string> read = [] {
        std::vector<std::filesystem::path> paths;
        for (const auto& entry : std::filesystem::directory_iterator(FUZZ_SEEDS)) {
            paths.push_back(entry.path());
        }
        std::sort(paths.begin(), paths.end()); // so that a run's number means the same everywhere
        std::vector<std::string> texts;
        for (const auto& path : paths) {
            std::ifstream from(path, std::ios::binary);
            texts.emplace_back(std::istreambuf_iterator<char>(from),
                               std::istreambuf_iterator<char>());
        }
        require(!texts.empty(), "no seeds in " FUZZ_SEEDS);
        return texts;
    }();
    return read;
}

std::string mutated(chance& by, std::string text, const std::vector<std::string>& others) {
    for (std::size_t n = by.below(6); n > 0; --n) {
        change(by, text, others);
    }
    return text;
}

std::vector<std::string_view> pieces(chance& by, std::string_view text) {
    std::vector<std::string_view> made;
    const std::size_t longest = by.one_in(3) ? 1 : by.one_in(2) ? 50 : 100'000;
    while (!text.empty()) {
        const std::size_t size = std::min(text.size(), 1 + by.below(longest));
        made.push_back(text.substr(0, size));
        text.remove_prefix(size);
    }
    return made;
}

} // namespace fuzz
