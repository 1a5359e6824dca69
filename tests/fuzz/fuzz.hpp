// Mutational fuzzing without an engine: g++ only, and deterministic, so that every finding can be
// had again by its number.
//
// A target is a function from a `chance` to nothing; run N of it is given the chance of seed N. It
// calls require() for what must always hold; that, a crash, or a sanitizer ends the process with
// the number told. Build with the `sanitize` preset for the most to be found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace fuzz {

class chance {
public:
    explicit chance(std::uint64_t seed) : engine_(seed) {}
    std::size_t below(std::size_t n) { return n == 0 ? 0 : engine_() % n; }
    bool one_in(std::size_t n) { return below(n) == 0; }
    std::uint64_t number() { return engine_(); }
    template <class List>
    const auto& of(const List& list) {
        return list[below(list.size())];
    }

private:
    std::mt19937_64 engine_;
};

// Ends the process, telling what was broken and by which run.
void require(bool holds, const char* what);

// Bytes that operator new has given out and not got back.
std::size_t memory_in_use() noexcept;

// The files of tests/fuzz/seeds.
const std::vector<std::string>& seeds();

// `text` with some things changed: bytes, numbers, lines, pieces of `others`.
std::string mutated(chance& by, std::string text, const std::vector<std::string>& others);

// Cuts `text` into pieces at random; none is empty.
std::vector<std::string_view> pieces(chance& by, std::string_view text);

void shim(chance& by);      // core/shim_frames and core/shim_link
void ndjson(chance& by);    // cloud/ndjson
void rpc_lines(chance& by); // rpc/line_splitter and rpc/message

} // namespace fuzz
