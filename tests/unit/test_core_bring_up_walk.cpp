// Bring-up and shut-down machines against a cloud that misbehaves at random, for many lives of one
// key: requests are refused, answered and lost, or lost and done; sandboxes boot, hang, fail, stop
// and vanish; the daemon dies anywhere. Whatever happens, each operation ends, nothing is created
// without a written intent, no sandbox with files in it is deleted, and no sandbox of ours is
// forgotten.
#include "core/bring_up_fsm.hpp"
#include "core/shut_down_fsm.hpp"
#include "failures.hpp"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

using namespace sandboxd;
using namespace sandboxd::core;
using cloud::sandbox_info;
using cloud::sandbox_state;
using kind = cloud::failure_kind;
using test::failure_of;

namespace {

class fake_cloud {
public:
    struct sandbox {
        sandbox_state state = sandbox_state::creating;
        std::map<std::string, std::string> tags;
        bool has_files = false;
        bool persistent = true;
    };

    explicit fake_cloud(std::mt19937& random) : random_(random) {}

    std::map<std::string, sandbox> all;
    std::string last_made;
    bool calm = false; // no failures: what was left undone is put right

    bool chance(unsigned percent) { return random_() % 100 < percent; }

    // Time passes.
    void drift() {
        for (auto& [id, each] : all) {
            if (!chance(30)) continue;
            switch (each.state) {
            case sandbox_state::creating:
                each.state = !calm && chance(15) ? sandbox_state::failed : sandbox_state::starting;
                break;
            case sandbox_state::starting:
                each.state = calm || chance(70) ? sandbox_state::running
                             : chance(40)       ? sandbox_state::failed
                             : chance(30)       ? sandbox_state::stopped
                                                : sandbox_state::starting;
                break;
            case sandbox_state::stopping:
                each.state = sandbox_state::stopped;
                break;
            case sandbox_state::running:
                if (!calm && chance(3)) each.state = sandbox_state::stopping;
                break;
            case sandbox_state::stopped:
                if (!calm && chance(3)) each.state = sandbox_state::deleted;
                break;
            default:
                break;
            }
        }
    }

    // What a request meets on its way: nothing, a failure without effect, or one after it took
    // effect.
    enum class luck { good, refused, lost_after };
    luck draw() {
        if (calm || chance(65)) return luck::good;
        return chance(60) ? luck::refused : luck::lost_after;
    }
    cloud::failure without_effect() {
        const kind kinds[] = {kind::unreachable,       kind::rate_limited, kind::interrupted,
                              kind::server_error,      kind::no_capacity,  kind::bad_answer,
                              kind::not_found_unproven};
        return failure_of(kinds[random_() % std::size(kinds)]);
    }
    // A lost answer looks like this; a 404 or 429 would be a lie.
    cloud::failure after_effect() {
        const kind kinds[] = {kind::interrupted, kind::server_error, kind::bad_answer};
        return failure_of(kinds[random_() % std::size(kinds)]);
    }

    cloud::result<std::string> create(std::map<std::string, std::string> tags, bool persistent) {
        const luck how = draw();
        if (how == luck::refused) {
            return chance(20) ? failure_of(kind::cap_reached) : without_effect();
        }
        last_made = "sb_" + std::to_string(++made_);
        all[last_made] = {sandbox_state::creating, std::move(tags), false, persistent};
        if (how == luck::lost_after) return after_effect();
        return last_made;
    }

    cloud::result<sandbox_info> get(const std::string& id) {
        if (draw() != luck::good) return without_effect();
        const auto found = all.find(id);
        if (found == all.end()) return failure_of(kind::not_found);
        return info(id, found->second);
    }

    cloud::result<std::vector<sandbox_info>> list() {
        if (draw() != luck::good) return without_effect();
        std::vector<sandbox_info> listed;
        for (const auto& [id, each] : all)
            listed.push_back(info(id, each));
        return listed;
    }

    template <class Effect>
    cloud::result<void> act(const std::string& id, Effect effect) {
        const luck how = draw();
        if (how == luck::refused) return without_effect();
        const auto found = all.find(id);
        if (found == all.end() || found->second.state == sandbox_state::deleted)
            return failure_of(kind::not_found);
        if (!effect(found->second)) return failure_of(kind::conflict);
        if (how == luck::lost_after) return after_effect();
        return {};
    }
    cloud::result<void> start(const std::string& id) {
        return act(id, [](sandbox& each) {
            if (each.state != sandbox_state::stopped && each.state != sandbox_state::failed)
                return false;
            each.state = sandbox_state::starting;
            return true;
        });
    }
    cloud::result<void> stop(const std::string& id) {
        return act(id, [](sandbox& each) {
            if (each.state != sandbox_state::running) return false;
            each.state = sandbox_state::stopping;
            return true;
        });
    }
    cloud::result<void> remove(const std::string& id) {
        const auto result = act(id, [](sandbox& each) {
            each.state = sandbox_state::deleted;
            return true;
        });
        return result;
    }

    bool alive(const std::string& id) const {
        const auto found = all.find(id);
        return found != all.end() && found->second.state != sandbox_state::deleted;
    }

private:
    static sandbox_info info(const std::string& id, const sandbox& each) {
        sandbox_info seen;
        seen.id = id;
        seen.state = each.state;
        seen.tags = each.tags;
        return seen;
    }

    std::mt19937& random_;
    int made_ = 0;
};

// What the manager does (sandbox/operations), on a virtual clock; "disk" is what a next daemon
// would find.
struct walk {
    std::mt19937 random;
    fake_cloud cloud{random};
    sandbox_record record;
    sandbox_record disk;
    milliseconds now{0};
    int seeds = 0;
    bool saves_fail; // else the daemon dies now and then: the two at once may lose what only memory
                     // knew
    bool crashed = false;

    walk(unsigned seed, bool failing_saves) : random(seed), saves_fail(failing_saves) {
        record.key = {"p", "t"};
        disk = record;
    }

    bool save() {
        if (saves_fail && !cloud.calm && cloud.chance(10)) return false;
        disk = record;
        return true;
    }
    bool dies() {
        crashed = !saves_fail && !cloud.calm && cloud.chance(1);
        if (crashed) record = disk;
        return crashed;
    }

    // Whether it came to `done`.
    bool bring_up() {
        using action = bring_up_fsm::action;
        bring_up_fsm machine(record, "s" + std::to_string(++seeds), "inst");
        bring_up_fsm::step step = machine.begin(now);
        const milliseconds began = now;
        for (int count = 0;; ++count) {
            REQUIRE(count < 5'000);
            REQUIRE(now - began < std::chrono::hours(1));
            if (step.what != action::done && step.what != action::fail && dies()) return false;
            now += milliseconds(30);
            cloud.drift();
            switch (step.what) {
            case action::queue:
                if (!cloud.calm && cloud.chance(5)) {
                    step = machine.on_no_place(now, {error_name::cap_reached, "full"});
                } else {
                    now += milliseconds(cloud.chance(20) ? 60'000 : 0);
                    step = machine.on_place(now);
                }
                break;
            case action::save:
                step = save() ? machine.on_saved(now) : machine.on_save_failed(now, "full");
                break;
            case action::get:
                step = machine.on_get(now, cloud.get(record.sandbox_id));
                break;
            case action::list:
                step = machine.on_list(now, cloud.list());
                break;
            case action::create: {
                REQUIRE(disk.create_pending);
                REQUIRE(creation_tag(disk) == creation_tag(record));
                REQUIRE(record.sandbox_id.empty());
                const auto made = cloud.create(tags_for(record, "inst"), record.persistent);
                if (dies()) return false;
                step = machine.on_create(now, made);
                break;
            }
            case action::start:
                step = machine.on_start(now, cloud.start(record.sandbox_id));
                break;
            case action::remove: {
                REQUIRE_FALSE(record.sandbox_id.empty());
                const auto& target = cloud.all.at(record.sandbox_id);
                REQUIRE((!target.has_files || !target.persistent));
                const auto removed = cloud.remove(record.sandbox_id);
                if (dies()) return false;
                step = machine.on_remove(now, removed);
                break;
            }
            case action::wait:
                REQUIRE(step.delay > milliseconds(0));
                now += step.delay;
                step = machine.on_waited(now);
                break;
            case action::done:
                REQUIRE_FALSE(record.create_pending);
                REQUIRE(record.state == life_state::running);
                REQUIRE(record.generation > 0);
                cloud.all.at(record.sandbox_id).has_files = true;
                return true;
            case action::fail:
                REQUIRE(step.error);
                save();
                return false;
            }
        }
    }

    bool shut_down(shut_down_fsm::goal goal) {
        using action = shut_down_fsm::action;
        shut_down_fsm machine(record, goal, "inst");
        shut_down_fsm::step step = machine.begin(now);
        const milliseconds began = now;
        for (int count = 0;; ++count) {
            REQUIRE(count < 5'000);
            REQUIRE(now - began < std::chrono::hours(1));
            if (step.what != action::done && step.what != action::fail && dies()) return false;
            now += milliseconds(30);
            cloud.drift();
            switch (step.what) {
            case action::get:
                step = machine.on_get(now, cloud.get(record.sandbox_id));
                break;
            case action::list:
                step = machine.on_list(now, cloud.list());
                break;
            case action::stop:
                REQUIRE(goal == shut_down_fsm::goal::stopped);
                step = machine.on_stop(now, cloud.stop(record.sandbox_id));
                break;
            case action::remove:
                REQUIRE(goal == shut_down_fsm::goal::deleted);
                step = machine.on_remove(now, cloud.remove(record.sandbox_id));
                break;
            case action::wait:
                REQUIRE(step.delay > milliseconds(0));
                now += step.delay;
                step = machine.on_waited(now);
                break;
            case action::done:
                save();
                REQUIRE(
                    (record.state == life_state::stopped || record.state == life_state::absent));
                REQUIRE(record.sandbox_id.empty() == (record.state == life_state::absent));
                return true;
            case action::fail:
                save();
                return false;
            }
        }
    }

    void check_nothing_forgotten() const {
        for (const auto& [id, each] : cloud.all) {
            if (each.state == sandbox_state::deleted || id == record.sandbox_id) continue;
            const std::string& creation = each.tags.at(std::string(tag::creation));
            CAPTURE(id);
            CAPTURE(creation);
            CAPTURE(record.creation_id);
            const bool of_the_intent =
                record.create_pending && creation.starts_with(record.creation_id + ".");
            const bool doubted = std::any_of(
                record.doubts.begin(), record.doubts.end(), [&](const open_doubt& doubt) {
                    return creation.starts_with(doubt.creation_id + ".");
                });
            CHECK((of_the_intent || doubted));
        }
    }

    void live(int rounds) {
        std::uint64_t highest = 0;
        for (int round = 0; round < rounds; ++round) {
            const unsigned what = random() % 10;
            if (record.sandbox_id.empty() && !record.create_pending)
                record.persistent = random() % 3 != 0;
            if (what < 7) {
                if (record.state == life_state::running && random() % 2 == 0) {
                    record.state =
                        life_state::unknown; // a command was answered with 409 (manager::distrust)
                }
                const bool up = bring_up();
                if (up) {
                    CHECK(record.generation >= highest);
                    highest = record.generation;
                }
            } else {
                shut_down(what == 7 ? shut_down_fsm::goal::deleted : shut_down_fsm::goal::stopped);
            }
            check_nothing_forgotten();
        }
        cloud.calm = true;
        record.state = record.state == life_state::running ? life_state::unknown : record.state;
        const bool up = bring_up() || bring_up(); // once more where two in a row could not boot
        CHECK(up);
        CHECK(cloud.all.at(record.sandbox_id).state == sandbox_state::running);
        check_nothing_forgotten();
        CHECK(shut_down(shut_down_fsm::goal::deleted));
        for (const auto& [id, each] : cloud.all) {
            CAPTURE(id);
            CHECK(each.state == sandbox_state::deleted);
        }
    }
};

} // namespace

TEST_CASE("bring up: a random walk with a daemon that dies") {
    for (unsigned seed = 1; seed <= 150; ++seed) {
        CAPTURE(seed);
        walk(seed, false).live(40);
    }
}

TEST_CASE("bring up: a random walk with saves that fail") {
    for (unsigned seed = 1; seed <= 150; ++seed) {
        CAPTURE(seed);
        walk(seed, true).live(40);
    }
}
