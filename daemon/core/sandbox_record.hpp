// What the daemon knows, and keeps across its own death, about the sandbox of one key.
//
// A record exists from the moment a create is intended (before the request is sent) until the
// sandbox is known to be gone or was terminated. It belongs to one account on one host (`base_url`,
// `fingerprint`): what another key or host says about the id never changes it.
#pragma once

#include "cloud/model.hpp"
#include "core/money.hpp"

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::core {

// Who a sandbox is for. Two keys are the same only if both parts are, byte for byte.
struct sandbox_key {
    std::string profile;
    std::string task;
    auto operator<=>(const sandbox_key&) const = default;
};

// "profile/task" for people; not injective, never used to find anything.
std::string describe(const sandbox_key& key);

// The states of protocol/types.json.
enum class life_state { absent, creating, starting, running, stopping, stopped, failed, unknown };

std::string_view to_string(life_state state) noexcept;
life_state life_state_from(std::string_view text) noexcept;    // anything else: unknown
life_state life_state_of(cloud::sandbox_state state) noexcept; // deleted: absent

// Whether the cloud charges for it and counts it against the cap (D).
bool is_active(life_state state) noexcept;
bool is_on_its_way(life_state state) noexcept; // to another state, by itself

// A creation of which a request may still take effect although nobody waits for it any more: what
// turns up with its id, beyond the sandbox in use, is deleted.
struct open_doubt {
    std::string creation_id;
    std::int64_t since = 0; // unix seconds; 0: just now, the keeper of the record fills it in
};

// A client's process: the one that a one-session sandbox lives and dies with, or one that wants a
// sandbox kept. A pid alone may be given to another process, and after a reboot the start time too:
// hence the boot.
struct owner_process {
    int pid = 0; // 0: not known, for example in a pid namespace that we cannot see into
    std::uint64_t start_time = 0;
    std::string boot;
};

struct sandbox_record {
    sandbox_key key;
    bool persistent = true;
    std::string plan; // as asked for; empty: the server's default
    std::string base_url;
    std::string fingerprint; // of the API key, see base/fingerprint.hpp

    // Names one intent to create, in the cloud's tags too. Survives attempts; a new sandbox gets a
    // new one.
    std::string creation_id;
    int attempt = 0;             // of that creation_id; goes into the tag
    bool create_pending = false; // a POST may have been sent and its outcome is not known

    std::string sandbox_id; // the cloud's id; empty: none known
    life_state state = life_state::absent;
    // Made by the creation of that id, and never seen to have booted since: nothing can be in it.
    // What the platform calls the state proves nothing of that.
    bool untried = false;
    // Counts the boots of this key's sandboxes: whoever remembers another number has lost processes
    // and everything outside /workspace.
    std::uint64_t generation = 0;
    // Which of them is the first boot of the newest sandbox, from when that is to be made: whoever
    // remembers an earlier one has lost /workspace too. 0: not known.
    std::uint64_t first_boot = 0;
    std::int64_t created_at = 0;    // unix seconds, as the cloud says; 0: not known
    std::string runs_on;            // the plan, as the cloud names it; empty: not seen yet
    std::int64_t stopped_since = 0; // unix seconds of the cloud's clock; 0: not stopped, or unknown
    core::usage usage;
    owner_process owner;     // of a one-session sandbox
    bool owner_gone = false; // it has let go, or its process has ended: never to be used again
    bool state_lost = false; // the sandbox known before is gone, and nobody has been told yet
    std::vector<open_doubt> doubts; // oldest first
    // Who wanted it kept when the record was written; while the daemon lives, its entry knows.
    std::vector<owner_process> holders;
    // After so long without a call the platform stops it: asked for when it was made, whatever the
    // option says by now. 0: not known.
    std::chrono::seconds timeout{0};
    // So long after its last use it is stopped, by the last one who asked for a time. 0: by the
    // option. Never shorter than least_idle_stop.
    std::chrono::seconds idle_stop{0};
};

// Several times what a stopped process may be taken for idle by (core/awake_clock).
inline constexpr std::chrono::seconds least_idle_stop{30};

// Whether the key's sandbox is another one than when its newest boot was `generation`; 0: there was
// none, and nothing can have been lost.
bool is_new_since(const sandbox_record& record, std::uint64_t generation) noexcept;

// As seen now.
void note_state(sandbox_record& record, life_state state);

// What may still turn up of the record's creation is remembered beyond its use. Once is enough.
void note_doubt(sandbox_record& record);

// Of a sandbox whose time-out is not known (an orphan from before it was tagged): what it is kept
// awake by. A shorter one would stop it between two commands of a person, so nobody sets it.
inline constexpr std::chrono::seconds least_timeout{60};

// The tags a sandbox of ours carries. Ownership is proved by `owner` and `instance` together; the
// rest finds a record again or is for people.
namespace tag {
inline constexpr std::string_view owner = "owner"; // = owner_value
inline constexpr std::string_view owner_value = "deepinfra-sandboxd";
inline constexpr std::string_view instance = "sandboxd_instance";
inline constexpr std::string_view key = "sandboxd_key";           // digest of the key
inline constexpr std::string_view creation = "sandboxd_creation"; // "<creation_id>.<attempt>"
inline constexpr std::string_view task = "hermes_task_id";
inline constexpr std::string_view timeout = "sandboxd_timeout_s";
inline constexpr std::string_view kind = "sandboxd_kind"; // = kind_ephemeral, or absent
inline constexpr std::string_view kind_ephemeral = "ephemeral";
} // namespace tag

// Injective: no two keys share it, whatever characters they hold.
std::string key_digest(const sandbox_key& key);
std::string creation_tag(const sandbox_record& record);
std::map<std::string, std::string> tags_for(const sandbox_record& record,
                                            std::string_view instance);

// Proofs of ownership, by tags alone. Made by this daemon; and made for this very intent, by any of
// its attempts (an earlier one may turn up late).
bool is_made_by(const cloud::sandbox_info& info, std::string_view instance);
bool is_made_for_key(const cloud::sandbox_info& info, const sandbox_key& key);
bool is_ephemeral(const cloud::sandbox_info& info);
std::string task_tag(const cloud::sandbox_info& info);             // for people
std::string digest_tag(const cloud::sandbox_info& info);           // key_digest of its key
std::chrono::seconds timeout_tag(const cloud::sandbox_info& info); // 0: not known
bool is_made_for(const cloud::sandbox_info& info, const sandbox_record& record,
                 std::string_view instance);
// The one that this intent has made, if the listing shows it; not one that was deleted.
const cloud::sandbox_info* made_for(const std::vector<cloud::sandbox_info>& listing,
                                    const sandbox_record& record, std::string_view instance);

} // namespace sandboxd::core
