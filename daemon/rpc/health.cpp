#include "rpc/health.hpp"

#include <boost/json/object.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>

namespace sandboxd::rpc {

namespace json = boost::json;

namespace {

constexpr std::chrono::seconds clock_tolerance{60};

class items {
public:
    void error(std::string_view code, const std::string& text, std::string_view hint) {
        add(errors_, code, "error", text, hint);
    }
    void warning(std::string_view code, const std::string& text, std::string_view hint) {
        add(warnings_, code, "warning", text, hint);
    }
    void note(std::string_view code, const std::string& text, std::string_view hint) {
        add(notes_, code, "info", text, hint);
    }
    json::array all() && {
        errors_.insert(errors_.end(), warnings_.begin(), warnings_.end());
        errors_.insert(errors_.end(), notes_.begin(), notes_.end());
        return std::move(errors_);
    }

private:
    static void add(json::array& to, std::string_view code, std::string_view severity,
                    const std::string& text, std::string_view hint) {
        to.push_back(
            json::object{{"code", code}, {"severity", severity}, {"text", text}, {"hint", hint}});
    }

    json::array errors_;
    json::array warnings_;
    json::array notes_;
};

void judge_account(items& found, const sandbox::account& account) {
    if (!account.configured()) {
        found.error("not_configured", "There is no DeepInfra API key, so no command can run.",
                    info(error_name::not_configured).hint);
    }
    if (account.key_refused()) {
        found.error("unauthorized",
                    "The platform refuses the API key (fingerprint " + account.fingerprint() + ").",
                    info(error_name::unauthorized).hint);
    }
    if (const auto& why = account.unreachable()) {
        found.error("cloud_unreachable",
                    "The platform at " + account.base_url() + " could not be reached: " + *why +
                        ".",
                    info(error_name::cloud_unreachable).hint);
    }
    if (const auto ahead = account.clock_ahead();
        ahead && std::chrono::abs(*ahead) > clock_tolerance) {
        const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(*ahead).count();
        found.warning("clock",
                      "This machine's clock is " + std::to_string(std::abs(seconds)) + " s " +
                          (seconds > 0 ? "ahead of" : "behind") + " the platform's" +
                          (account.clock().in_doubt()
                               ? ", says its last answer; until another one confirms that, nothing "
                                 "goes by it and nothing is deleted by its age."
                               : "."),
                      "set the clock (timedatectl set-ntp true): certificates and logs go by it");
    }
}

void judge_money(items& found, sandbox::manager& manager) {
    const sandbox::money spent = manager.spending();
    char text[128];
    std::snprintf(text, sizeof text, "Today's sandboxes have cost $%.2f of a budget of $%.2f",
                  spent.total.today_usd, spent.budget_per_day);
    switch (manager.budget()) {
    case core::budget_state::fine:
        break;
    case core::budget_state::nearly_spent:
        found.warning("budget", std::string(text) + "; at the whole of it nothing new is started.",
                      "deepinfra-sandboxd list shows what runs; raise budget-per-day if that is "
                      "meant to go on");
        break;
    case core::budget_state::spent:
        found.error("budget", std::string(text) + ": nothing new is started, what runs goes on.",
                    info(error_name::budget_reached).hint);
        break;
    }
    if (spent.budget_per_day > 0 && !spent.prices_known) {
        found.warning("prices_unknown",
                      "The price of something that runs is not known, so the budget does not count "
                      "it.",
                      "");
    }
}

// One item for all of them: they were left by a change of the key, and there may be many.
void judge_other_accounts(items& found, const services& parts) {
    // The first listing with a new key may show that it is of the same account.
    if (!parts.account.configured() || !parts.manager.reconciled()) {
        return;
    }
    constexpr std::size_t most_named = 5;
    const std::vector<core::sandbox_record> others = parts.manager.of_other_accounts();
    if (others.empty()) {
        return;
    }
    std::string names;
    for (std::size_t i = 0; i < std::min(others.size(), most_named); ++i) {
        const core::sandbox_record& record = others[i];
        names += (i == 0 ? "" : ", ") + describe(record.key) + " (" +
                 (record.sandbox_id.empty() ? std::string("perhaps made") : record.sandbox_id) +
                 ", " + record.base_url + ", key fingerprint " + record.fingerprint + ")";
    }
    if (others.size() > most_named) {
        names += ", and " + std::to_string(others.size() - most_named) + " more";
    }
    found.warning(
        "account_mismatch",
        "The daemon works for another account or host than the one these were made with, so "
        "nobody stops them when they are idle or knows what they cost: " +
            names + ".",
        "start the daemon with the key and base URL they were made with; or look after "
        "them on that account's dashboard, and have them forgotten here "
        "(deepinfra-sandboxd terminate --forget)");
}

void judge_sandboxes(items& found, const services& parts) {
    sandbox::manager& manager = parts.manager;
    if (const std::size_t queued = manager.queued(); queued != 0) {
        found.warning("cap_reached",
                      std::to_string(queued) +
                          (queued == 1 ? " sandbox waits" : " sandboxes wait") + " for one of " +
                          std::to_string(parts.max_active) + " active ones to stop.",
                      info(error_name::cap_reached).hint);
    }
    if (const std::size_t lost = manager.orphans().size(); lost != 0) {
        found.warning(
            "orphans",
            std::to_string(lost) +
                (lost == 1 ? " sandbox was made by this daemon, and no record of it is left."
                           : " sandboxes were made by this daemon, and no record of them is left."),
            "they take places and cost money; deepinfra-sandboxd doctor tells what can be done");
    }
    judge_other_accounts(found, parts);
    for (const core::sandbox_key& key : manager.about_to_expire()) {
        found.warning(
            "expires",
            "The sandbox of " + describe(key) +
                " has been stopped for six days; the platform deletes it, with its "
                "files, after seven.",
            "deepinfra-sandboxd start brings it back for another week; terminate ends it");
    }
    const std::map<std::string, std::string> without_shim = parts.execs.shims().all_unusable();
    const std::map<std::string, std::size_t> runners_gone = parts.execs.shims().runners_gone();
    for (const sandbox::view& shown : manager.list()) {
        const auto gone = runners_gone.find(shown.record.sandbox_id);
        if (gone != runners_gone.end()) {
            found.warning(
                "runner_gone",
                "In sandbox " + gone->first + ", " + std::to_string(gone->second) +
                    (gone->second == 1 ? " command was" : " commands were") +
                    " lost with the process that kept it: killed by a command (kill -9 -1), for "
                    "want of memory, or by a platform that ends whole process trees when a "
                    "connection breaks. Nothing was run again.",
                "If it happens whenever a connection breaks, expect it of every long command.");
        }
        const auto bare = without_shim.find(shown.record.sandbox_id);
        if (bare != without_shim.end()) {
            found.warning("shim_unusable",
                          "Commands in sandbox " + bare->first + " run without the shim (" +
                              bare->second +
                              "): one whose connection is lost cannot be found again, and none "
                              "lasts longer than the platform's 30 minutes; one "
                              "client at a time gets its output; its stdin has to be there as a "
                              "whole, and not beyond 100 MiB, before it starts; bytes that are not "
                              "UTF-8 are replaced; what works there in the background is not "
                              "known; and each command makes the next push look for what was "
                              "pushed before, which costs a call.",
                          "");
        }
    }
}

} // namespace

json::array health_items(const services& parts) {
    items found;
    judge_account(found, parts.account);
    judge_money(found, parts.manager);
    judge_sandboxes(found, parts);
    if (const std::string why = parts.manager.unsaved(); !why.empty()) {
        found.error("state_unwritable",
                    "The state could not be written, so no sandbox can be created: " + why + ".",
                    "make the state directory (" + parts.state_dir.string() +
                        ") writable and its disk not full");
    }
    if (const std::string& why = parts.execs.journal_trouble(); !why.empty()) {
        found.warning("journal",
                      "The journal of commands cannot be kept (" + why +
                          "): should the daemon end now, it would not find running commands again.",
                      "Make room in the state directory, or put its permissions right.");
    }
    for (const std::string& text : parts.complaints) {
        found.warning("state_damaged", text,
                      "Compare with your DeepInfra dashboard; delete the kept file once nothing in "
                      "it is missed.");
    }
    for (const std::string& text : parts.manager.complaints()) {
        found.warning("degraded", text,
                      "It is tried again by itself; deepinfra-sandboxd doctor tries the key and "
                      "the network.");
    }
    return std::move(found).all();
}

} // namespace sandboxd::rpc
