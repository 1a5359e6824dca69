// What the daemon keeps of one command across its own death: enough to find it again in its
// sandbox, to tell one request from another under the same id, and to tell how it ended.
//
// Never its arguments, environment or input: those may hold secrets, and a command that was sent is
// never sent again anyway.
#pragma once

#include "core/exec_fsm.hpp"
#include "core/sandbox_record.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace sandboxd::core {

enum class exec_phase {
    accepted, // nothing was sent: it has not run
    sent,     // it may run
    heard,    // its runner was heard of
    ended     // `exit` stands
};

struct exec_record {
    std::string exec_id;
    std::string digest; // of the request, see command_digest
    sandbox_key key;
    owner_process client; // that asked for it
    std::optional<milliseconds> timeout;
    exec_phase phase = exec_phase::accepted;
    std::int64_t at = 0; // unix milliseconds: when it was asked for, sent, or found to have ended
    // The newest boot of its key's sandbox when it was asked for; 0: there had been none.
    std::uint64_t asked_in = 0;

    // Once sent.
    std::string sandbox_id;
    std::uint64_t generation = 0; // of the sandbox's boot
    bool created = false;         // of another sandbox than the one that it was asked for in
    bool attached = false;        // without the in-sandbox runner: it cannot be found again
    std::uint64_t safe = 0;       // output before this position is with its client

    // Once ended.
    exec_exit exit;
    std::uint64_t output_end = 0; // position after its last output, as far as is known
    milliseconds elapsed{0};      // from the request to its end
    bool forgotten = false;       // the sandbox need not keep it
};

// It runs, or ran, in another boot than the one that it was asked for in.
inline bool is_recreated(const exec_record& record) noexcept {
    return record.asked_in != 0 && record.generation != 0 && record.generation != record.asked_in;
}

} // namespace sandboxd::core
