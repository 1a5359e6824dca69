// The body of an exec's answer, as it comes in pieces, to events.
//
// Pure and incremental: bytes are appended as they arrive, events are taken one at a time, memory
// is bounded by one line and one piece. Known shape (S): `{"stdout":"t"}`, `{"stderr":"t"}`, `{}`,
// and at last `{"returncode":N}` or
// `{"error":"m"}`. Tolerated: both streams in one line, unknown fields of any type, `null` for an
// absent field, CRLF, blank lines, a last line without a newline. Bytes that are not UTF-8 and lone
// surrogates become U+FFFD, because losing a command's exit for one bad character would be the
// greater harm. Anything else ends as exec_cut.
#pragma once

#include "base/secret.hpp"
#include "cloud/exec_event.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace sandboxd::cloud {

class ndjson_decoder {
public:
    // `max_line`: the most bytes of one line without its newline. `key` is masked in the text of an
    // error line.
    ndjson_decoder(std::size_t max_line, secret key);
    ~ndjson_decoder();
    ndjson_decoder(ndjson_decoder&&) noexcept;
    ndjson_decoder& operator=(ndjson_decoder&&) noexcept;

    // Adds what arrived. After the terminal event it is thrown away.
    void append(std::string_view bytes);

    // The next event that is complete, if there is one. Neighbouring output of one stream that has
    // already arrived is joined up to about 64 KiB, and heartbeats vanish next to it.
    std::optional<exec_event> next();

    // The body has ended, well (`why` empty) or not, and next() has nothing more: what is to be
    // said last. That is the events of a last line without a newline if it is whole, one a call,
    // and then exec_cut.
    exec_event finish(const std::optional<failure>& why);

    // Whether the terminal event has been taken.
    bool ended() const noexcept;

private:
    struct state;
    std::unique_ptr<state> state_;
};

} // namespace sandboxd::cloud
