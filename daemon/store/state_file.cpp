#include "store/state_file.hpp"

#include <boost/json.hpp>

#include <set>

namespace sandboxd::store {
namespace {

namespace json = boost::json;

json::object to_json(const core::usage& usage) {
    return {{"seconds", usage.seconds},
            {"usd", usage.usd},
            {"unpriced_s", usage.unpriced_s},
            {"counted_to_ms", usage.counted_to.count()},
            {"seen_at_ms", usage.seen_at.count()},
            {"saving_s", usage.saving_s},
            {"saved_to_ms", usage.saved_to.count()}};
}

core::usage usage_from(const json::object& object) {
    const auto number = [&](const char* name) { return object.at(name).to_number<double>(); };
    const auto time = [&](const char* name) {
        return core::milliseconds(object.at(name).to_number<std::int64_t>());
    };
    core::usage usage;
    usage.seconds = number("seconds");
    usage.usd = number("usd");
    usage.unpriced_s = number("unpriced_s");
    usage.counted_to = time("counted_to_ms");
    // Younger than the rest.
    usage.seen_at =
        object.if_contains("seen_at_ms") != nullptr ? time("seen_at_ms") : usage.counted_to;
    usage.saving_s = number("saving_s");
    usage.saved_to = time("saved_to_ms");
    return usage;
}

json::object to_json(const core::ledger& ledger) {
    return {{"day", ledger.day},
            {"today_usd", ledger.today_usd},
            {"total_usd", ledger.total_usd},
            {"saved_today_usd", ledger.saved_today_usd},
            {"saved_usd", ledger.saved_usd}};
}

core::ledger ledger_from(const json::object& object) {
    const auto number = [&](const char* name) { return object.at(name).to_number<double>(); };
    core::ledger ledger;
    ledger.day = object.at("day").to_number<std::int64_t>();
    ledger.today_usd = number("today_usd");
    ledger.total_usd = number("total_usd");
    ledger.saved_today_usd = number("saved_today_usd");
    ledger.saved_usd = number("saved_usd");
    return ledger;
}

json::object to_json(const price_list& prices) {
    json::object usd;
    for (const auto& [plan, price] : prices.usd_per_hour) {
        usd[plan] = price;
    }
    return {{"at", prices.at}, {"usd_per_hour", std::move(usd)}};
}

price_list prices_from(const json::object& object) {
    price_list prices;
    for (const auto& [plan, price] : object.at("usd_per_hour").as_object()) {
        prices.usd_per_hour.emplace(std::string(plan), price.to_number<double>());
    }
    prices.at = object.at("at").to_number<std::int64_t>();
    return prices;
}

json::object to_json(const core::clock_mark& clock) {
    return {{"boot", clock.boot},
            {"elapsed_ms", clock.elapsed.count()},
            {"cloud_ms", clock.cloud.count()}};
}

core::clock_mark clock_from(const json::object& object) {
    const auto time = [&](const char* name) {
        return core::milliseconds(object.at(name).to_number<std::int64_t>());
    };
    return {json::value_to<std::string>(object.at("boot")), time("elapsed_ms"), time("cloud_ms")};
}

json::object to_json(const core::owner_process& process) {
    return {{"pid", process.pid}, {"start_time", process.start_time}, {"boot", process.boot}};
}

core::owner_process process_from(const json::object& object) {
    return {object.at("pid").to_number<int>(), object.at("start_time").to_number<std::uint64_t>(),
            json::value_to<std::string>(object.at("boot"))};
}

// Text that a JSON string cannot hold does not come in: keys reach us in JSON.
json::object to_json(const core::sandbox_record& record) {
    json::array doubts;
    for (const core::open_doubt& each : record.doubts) {
        doubts.push_back(json::object{{"creation_id", each.creation_id}, {"since", each.since}});
    }
    json::object owner = to_json(record.owner);
    owner["gone"] = record.owner_gone;
    json::array holders;
    for (const core::owner_process& each : record.holders) {
        holders.push_back(to_json(each));
    }
    return {{"profile", record.key.profile},
            {"task", record.key.task},
            {"persistent", record.persistent},
            {"plan", record.plan},
            {"base_url", record.base_url},
            {"fingerprint", record.fingerprint},
            {"creation_id", record.creation_id},
            {"attempt", record.attempt},
            {"create_pending", record.create_pending},
            {"sandbox_id", record.sandbox_id},
            {"state", core::to_string(record.state)},
            {"untried", record.untried},
            {"generation", record.generation},
            {"first_boot", record.first_boot},
            {"created_at", record.created_at},
            {"runs_on", record.runs_on},
            {"stopped_since", record.stopped_since},
            {"usage", to_json(record.usage)},
            {"state_lost", record.state_lost},
            {"owner", std::move(owner)},
            {"doubts", std::move(doubts)},
            {"holders", std::move(holders)},
            {"timeout_s", record.timeout.count()},
            {"idle_stop_s", record.idle_stop.count()}};
}

core::sandbox_record record_from(const json::object& object) {
    const auto text = [&](const char* name) {
        return json::value_to<std::string>(object.at(name));
    };
    core::sandbox_record record;
    record.key = {text("profile"), text("task")};
    record.persistent = object.at("persistent").as_bool();
    record.plan = text("plan");
    record.base_url = text("base_url");
    record.fingerprint = text("fingerprint");
    record.creation_id = text("creation_id");
    record.attempt = object.at("attempt").to_number<int>();
    record.create_pending = object.at("create_pending").as_bool();
    record.sandbox_id = text("sandbox_id");
    record.state = core::life_state_from(text("state"));
    record.generation = object.at("generation").to_number<std::uint64_t>();
    record.created_at = object.at("created_at").to_number<std::int64_t>();
    // What follows is younger than the format: files of older daemons lack it.
    const json::value* untried = object.if_contains("untried");
    record.untried = untried ? untried->as_bool() : record.state == core::life_state::creating;
    if (const json::value* first = object.if_contains("first_boot")) {
        record.first_boot = first->to_number<std::uint64_t>();
    }
    if (const json::value* plan = object.if_contains("runs_on")) {
        record.runs_on = json::value_to<std::string>(*plan);
    }
    if (const json::value* since = object.if_contains("stopped_since")) {
        record.stopped_since = since->to_number<std::int64_t>();
    }
    if (const json::value* usage = object.if_contains("usage")) {
        record.usage = usage_from(usage->as_object());
    }
    if (const json::value* lost = object.if_contains("state_lost")) {
        record.state_lost = lost->as_bool();
    }
    if (const json::value* owner = object.if_contains("owner")) {
        const json::object& process = owner->as_object();
        record.owner = process_from(process);
        record.owner_gone = process.at("gone").as_bool();
    }
    if (const json::value* doubts = object.if_contains("doubts")) {
        for (const json::value& each : doubts->as_array()) {
            record.doubts.push_back(
                {json::value_to<std::string>(each.as_object().at("creation_id")),
                 each.as_object().at("since").to_number<std::int64_t>()});
        }
    }
    if (const json::value* holders = object.if_contains("holders")) {
        for (const json::value& each : holders->as_array()) {
            record.holders.push_back(process_from(each.as_object()));
        }
    }
    if (const json::value* timeout = object.if_contains("timeout_s")) {
        record.timeout = std::chrono::seconds(timeout->to_number<std::uint32_t>());
    }
    if (const json::value* idle = object.if_contains("idle_stop_s")) {
        record.idle_stop = std::chrono::seconds(idle->to_number<std::uint32_t>());
    }
    return record;
}

} // namespace

std::string format_state(const saved_state& state) {
    json::array sandboxes;
    for (const core::sandbox_record& record : state.records) {
        sandboxes.push_back(to_json(record));
    }
    return json::serialize(json::object{{"version", state_version},
                                        {"sandboxes", std::move(sandboxes)},
                                        {"ledger", to_json(state.ledger)},
                                        {"prices", to_json(state.prices)},
                                        {"clock", to_json(state.clock)}}) +
           "\n";
}

parsed_state parse_state(std::string_view text) {
    boost::system::error_code error;
    const json::value root = json::parse(text, error);
    if (error || !root.is_object()) {
        throw unreadable_state("it is not a JSON object");
    }
    const json::value* version = root.as_object().if_contains("version");
    if (version == nullptr || !version->is_int64()) {
        throw unreadable_state("it has no version");
    }
    if (version->as_int64() > state_version) {
        throw unreadable_state("it was written by a newer daemon (version " +
                               std::to_string(version->as_int64()) + ")");
    }
    const json::value* sandboxes = root.as_object().if_contains("sandboxes");
    if (version->as_int64() < 1 || sandboxes == nullptr || !sandboxes->is_array()) {
        throw unreadable_state("it has no list of sandboxes");
    }
    parsed_state parsed;
    std::set<core::sandbox_key> seen;
    for (std::size_t i = 0; i < sandboxes->as_array().size(); ++i) {
        const std::string where = "record " + std::to_string(i) + ": ";
        try {
            core::sandbox_record record = record_from(sandboxes->as_array()[i].as_object());
            if (!seen.insert(record.key).second) {
                parsed.rejected.push_back(where + "a second one for the same key");
                continue;
            }
            parsed.state.records.push_back(std::move(record));
        } catch (const std::exception& problem) {
            parsed.rejected.push_back(where + problem.what());
        }
    }
    // None is worth losing a sandbox for.
    try {
        if (const json::value* ledger = root.as_object().if_contains("ledger")) {
            parsed.state.ledger = ledger_from(ledger->as_object());
        }
        if (const json::value* prices = root.as_object().if_contains("prices")) {
            parsed.state.prices = prices_from(prices->as_object());
        }
        if (const json::value* clock = root.as_object().if_contains("clock")) {
            parsed.state.clock = clock_from(clock->as_object());
        }
    } catch (const std::exception& problem) {
        parsed.rejected.push_back(std::string("costs and clock: ") + problem.what());
    }
    return parsed;
}

} // namespace sandboxd::store
