#include "cloud/ndjson.hpp"

#include "base/json_text.hpp"
#include "base/utf8.hpp"
#include "cloud/error_body.hpp"
#include "cloud/surrogates.hpp"

#include <boost/json/basic_parser_impl.hpp>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <utility>

namespace sandboxd::cloud {

namespace {

namespace json = boost::json;

// Output is joined up to this, so that a consumer's buffers stay small.
constexpr std::size_t joined_text = 64U << 10;

// Takes a line's parse events and puts text where it belongs at once: a gigabyte of output is
// copied once, never held as a tree. What it did can be undone, since a line may turn out broken
// after half of it.
class line_handler {
public:
    static constexpr std::size_t max_object_size = static_cast<std::size_t>(-1);
    static constexpr std::size_t max_array_size = static_cast<std::size_t>(-1);
    static constexpr std::size_t max_key_size = static_cast<std::size_t>(-1);
    static constexpr std::size_t max_string_size = static_cast<std::size_t>(-1);

    void begin(std::deque<exec_event>& events) {
        events_ = &events;
        first_new_ = events.size();
        joined_from_ = 0;
        if (!events.empty()) {
            if (const auto* last = std::get_if<exec_output>(&events.back()))
                joined_from_ = last->text.size();
        }
        depth_ = 0;
        field_ = field::other;
        key_.clear();
        returncode_.reset();
        error_.reset();
        is_object_ = false;
        wrong_type_ = false;
    }

    // Takes back what the line did so far.
    void undo() {
        while (events_->size() > first_new_)
            events_->pop_back();
        if (joined_from_ > 0) std::get<exec_output>(events_->back()).text.resize(joined_from_);
    }

    // Where output of that stream belongs: behind the last piece if that is of the same stream.
    std::string& output(bool is_stderr) {
        exec_output* last = events_->empty() ? nullptr : std::get_if<exec_output>(&events_->back());
        if (last == nullptr || last->is_stderr != is_stderr) {
            last = &std::get<exec_output>(events_->emplace_back(exec_output{is_stderr, {}}));
        }
        return last->text;
    }

    bool is_whole() const noexcept { return is_object_ && !wrong_type_; }
    bool has_output() const noexcept {
        return events_->size() > first_new_ ||
               (joined_from_ > 0 &&
                std::get<exec_output>(events_->back()).text.size() > joined_from_);
    }
    const std::optional<std::int64_t>& returncode() const noexcept { return returncode_; }
    const std::optional<std::string>& error() const noexcept { return error_; }

    bool on_document_begin(json::error_code&) { return true; }
    bool on_document_end(json::error_code&) { return true; }
    bool on_object_begin(json::error_code&) {
        if (depth_ == 0) is_object_ = true;
        if (depth_ == 1 && field_ == field::error) error_ = error_.value_or(std::string());
        value_began(field::error);
        ++depth_;
        return true;
    }
    bool on_object_end(std::size_t, json::error_code&) {
        --depth_;
        return true;
    }
    bool on_array_begin(json::error_code&) {
        value_began(field::other);
        ++depth_;
        return true;
    }
    bool on_array_end(std::size_t, json::error_code&) {
        --depth_;
        return true;
    }
    bool on_key_part(json::string_view part, std::size_t, json::error_code&) {
        if (key_.size() <= longest_name) key_.append(part.data(), part.size());
        return true;
    }
    bool on_key(json::string_view part, std::size_t, json::error_code&) {
        if (key_.size() <= longest_name) key_.append(part.data(), part.size());
        if (depth_ == 1) {
            field_ = key_ == "stdout"       ? field::out
                     : key_ == "stderr"     ? field::err
                     : key_ == "returncode" ? field::returncode
                     : key_ == "error"      ? field::error
                                            : field::other;
        }
        in_error_message_ = depth_ == 2 && field_ == field::error && key_ == "message";
        key_.clear();
        return true;
    }
    bool on_string_part(json::string_view part, std::size_t, json::error_code&) {
        text(part);
        return true;
    }
    bool on_string(json::string_view part, std::size_t, json::error_code&) {
        if (depth_ == 1 && field_ == field::returncode) wrong_type_ = true;
        text(part);
        return true;
    }
    bool on_number_part(json::string_view, json::error_code&) { return true; }
    bool on_int64(std::int64_t value, json::string_view, json::error_code&) {
        value_began(field::returncode);
        if (depth_ == 1 && field_ == field::returncode) returncode_ = value;
        return true;
    }
    bool on_uint64(std::uint64_t, json::string_view, json::error_code&) {
        // Only numbers over the range of int64 come here.
        value_began(field::other);
        return true;
    }
    bool on_double(double value, json::string_view, json::error_code&) {
        value_began(field::returncode);
        if (depth_ == 1 && field_ == field::returncode) {
            if (std::trunc(value) == value && std::abs(value) <= std::numeric_limits<int>::max()) {
                returncode_ = static_cast<std::int64_t>(value);
            } else {
                wrong_type_ = true;
            }
        }
        return true;
    }
    bool on_bool(bool, json::error_code&) {
        value_began(field::other);
        return true;
    }
    bool on_null(json::error_code&) { return true; }
    bool on_comment_part(json::string_view, json::error_code&) { return true; }
    bool on_comment(json::string_view, json::error_code&) { return true; }

private:
    enum class field { other, out, err, returncode, error };
    static constexpr std::size_t longest_name = 10; // "returncode"

    // A value that is not a string began; only `allowed` may have it.
    void value_began(field allowed) {
        if (depth_ == 1 && field_ != field::other && field_ != allowed) wrong_type_ = true;
    }

    void text(json::string_view part) {
        if (depth_ == 2 && in_error_message_) error_->append(part.data(), part.size());
        if (depth_ != 1 || field_ == field::other || field_ == field::returncode) return;
        if (field_ == field::error) {
            if (!error_) error_.emplace();
            error_->append(part.data(), part.size());
            return;
        }
        if (part.empty()) return;
        output(field_ == field::err).append(part.data(), part.size());
    }

    std::deque<exec_event>* events_ = nullptr;
    std::size_t first_new_ = 0;   // events before this one were there before the line
    std::size_t joined_from_ = 0; // the size of the last of them, if it is output
    int depth_ = 0;
    field field_ = field::other;
    bool in_error_message_ = false;
    std::string key_;
    std::optional<std::int64_t> returncode_;
    std::optional<std::string> error_;
    bool is_object_ = false;
    bool wrong_type_ = false;
};

failure broken(std::string message) {
    return failure{failure_kind::bad_answer, 200, std::move(message), std::nullopt};
}

bool is_terminal(const exec_event& event) {
    return !std::holds_alternative<exec_output>(event) &&
           !std::holds_alternative<exec_heartbeat>(event);
}

} // namespace

struct ndjson_decoder::state {
    state(std::size_t longest, secret masked)
        : max_line(longest), key(std::move(masked)), parser(json::parse_options{}) {}

    std::size_t max_line;
    secret key;
    std::string data;        // what has arrived from `begin` on is not parsed yet
    std::size_t begin = 0;   // of the first line not parsed
    std::size_t scanned = 0; // there is no newline between `begin` and here
    std::deque<exec_event> events;
    bool closed = false; // the terminal event is in `events` or has been taken
    bool ended = false;  // it has been taken
    json::basic_parser<line_handler> parser;

    // The line that comes by the million: one stream's text and nothing else. False: none of it was
    // taken.
    bool parse_plain_output(std::string_view line) {
        for (const std::string_view name : {"stdout", "stderr"}) {
            std::string_view rest = line;
            const auto skip = [&rest](std::string_view text) {
                const bool there = rest.starts_with(text);
                rest.remove_prefix(there ? text.size() : 0);
                return there;
            };
            if (!skip("{\"") || !skip(name) || !skip("\":")) continue;
            skip(" ");
            if (!skip("\"") || rest.starts_with('"')) return false;
            const auto end = append_json_unescaped(parser.handler().output(name == "stderr"), rest);
            if (end && rest.substr(*end + 1) == "}") return true;
            parser.handler().undo();
            return false;
        }
        return false;
    }

    bool parse(std::string_view line) {
        line_handler& handler = parser.handler();
        handler.begin(events);
        if (parse_plain_output(line)) return true;
        parser.reset();
        json::error_code ec;
        const std::size_t used = parser.write_some(false, line.data(), line.size(), ec);
        if (!ec && used == line.size() && handler.is_whole()) return true;
        handler.undo();
        return false;
    }

    void close(exec_event event) {
        events.push_back(std::move(event));
        closed = true;
    }

    // One line without its newline. False if it is not what a line can be; nothing was added to the
    // events then.
    bool take_line(std::string_view line) {
        while (!line.empty() &&
               (line.back() == '\r' || line.back() == ' ' || line.back() == '\t')) {
            line.remove_suffix(1);
        }
        if (line.find_first_not_of(" \t") == std::string_view::npos) return true;
        if (!parse(line)) {
            const std::string mended = repair_surrogate_escapes(repair_utf8(line));
            if (mended == line || !parse(mended)) return false;
        }
        const line_handler& handler = parser.handler();
        const auto& returncode = handler.returncode();
        if (returncode && (*returncode < std::numeric_limits<int>::min() ||
                           *returncode > std::numeric_limits<int>::max())) {
            parser.handler().undo();
            return false;
        }
        // With both, the error counts: a failure must not be told as a success. An empty one beside
        // a code is none.
        if (handler.error() && (!returncode || !handler.error()->empty())) {
            std::string message = clean_message(*handler.error(), key);
            if (message.empty()) message = "the platform ended the command without saying why";
            close(exec_refused{std::move(message)});
        } else if (returncode) {
            close(exec_exited{static_cast<int>(*returncode)});
        } else if (!handler.has_output() && events.empty()) {
            events.push_back(exec_heartbeat{});
        }
        return true;
    }

    // Parses the next whole line, if there is one.
    bool advance() {
        if (closed) return false;
        const void* newline = scanned < data.size()
                                  ? std::memchr(data.data() + scanned, '\n', data.size() - scanned)
                                  : nullptr;
        const std::size_t end =
            newline != nullptr
                ? static_cast<std::size_t>(static_cast<const char*>(newline) - data.data())
                : data.size();
        if (end - begin > max_line) {
            close(exec_cut{broken("a line of the command's output stream is longer than " +
                                  std::to_string(max_line) + " bytes")});
            return true;
        }
        if (newline == nullptr) {
            scanned = end;
            return false;
        }
        const bool good = take_line(std::string_view(data).substr(begin, end - begin));
        begin = end + 1;
        scanned = begin;
        if (!good)
            close(exec_cut{broken("a line of the command's output stream cannot be understood")});
        return true;
    }

    bool enough() const {
        if (events.empty()) return false;
        if (events.size() > 1) return true;
        const auto* output = std::get_if<exec_output>(&events.front());
        return (output != nullptr && output->text.size() >= joined_text) || closed;
    }

    exec_event take() {
        exec_event out = std::move(events.front());
        events.pop_front();
        ended = is_terminal(out);
        return out;
    }
};

ndjson_decoder::ndjson_decoder(std::size_t max_line, secret key)
    : state_(std::make_unique<state>(max_line, std::move(key))) {}
ndjson_decoder::~ndjson_decoder() = default;
ndjson_decoder::ndjson_decoder(ndjson_decoder&&) noexcept = default;
ndjson_decoder& ndjson_decoder::operator=(ndjson_decoder&&) noexcept = default;

void ndjson_decoder::append(std::string_view bytes) {
    if (state_->closed) return;
    if (state_->begin > 0) {
        state_->data.erase(0, state_->begin);
        state_->scanned -= state_->begin;
        state_->begin = 0;
    }
    state_->data.append(bytes);
}

std::optional<exec_event> ndjson_decoder::next() {
    while (!state_->enough() && state_->advance()) {
    }
    // A heartbeat next to output says nothing more.
    if (state_->events.size() > 1 &&
        std::holds_alternative<exec_heartbeat>(state_->events.front())) {
        state_->events.pop_front();
    }
    if (state_->events.empty()) return std::nullopt;
    return state_->take();
}

exec_event ndjson_decoder::finish(const std::optional<failure>& why) {
    if (auto event = next()) return *event;
    // An object that is whole cannot be the beginning of another line, so it counts even on a lost
    // connection.
    std::string rest = state_->data.substr(state_->begin);
    state_->data.clear();
    state_->begin = 0;
    state_->scanned = 0;
    if (state_->take_line(rest) && !state_->events.empty()) return state_->take();
    state_->ended = true;
    state_->closed = true;
    if (why) return exec_cut{*why};
    return exec_cut{failure{
        failure_kind::interrupted, 200,
        "the command's output stream ended without saying how the command ended", std::nullopt}};
}

bool ndjson_decoder::ended() const noexcept {
    return state_->ended;
}

} // namespace sandboxd::cloud
