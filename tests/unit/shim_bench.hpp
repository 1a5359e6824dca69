// What a shim prints, for tests that read it: frames as text.
#pragma once

#include "base/base64.hpp"
#include "core/shim_frames.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::test {

inline std::string hello(std::uint64_t pos = 0, std::uint64_t err = 0,
                         std::string_view state = "new") {
    return "deepinfra-shim/1 run build=1 arch=x86_64 uid=0 boot=b id=x state=" +
           std::string(state) + " pos=" + std::to_string(pos) +
           " out=" + std::to_string(pos - err) + " err=" + std::to_string(err) + "\n";
}

inline std::string data(char stream, std::uint64_t pos, std::uint64_t offset,
                        std::string_view bytes, bool raw = true) {
    return std::string(1, stream) + " " + std::to_string(pos) + " " + std::to_string(offset) +
           (raw ? " r " : " b ") + std::to_string(bytes.size()) + "\n" +
           (raw ? std::string(bytes) : base64_encode(bytes)) + "\n";
}

// Frames as text, one a line; then "broken", if it is.
inline std::string drain(core::shim_parser& parser) {
    std::string seen;
    while (const std::optional<core::shim_frame> frame = parser.next()) {
        if (const auto* data = std::get_if<core::shim_data>(&*frame)) {
            seen += (data->is_stderr ? "e " : "o ") + std::to_string(data->pos) + " " +
                    std::to_string(data->offset) + " " + data->bytes + "\n";
        } else {
            const auto& note = std::get<core::shim_note>(*frame);
            seen += note.name;
            for (const auto& [key, value] : note.fields) {
                seen += " " + key + "=" + value;
            }
            seen += "\n";
        }
    }
    return seen;
}

} // namespace sandboxd::test
