// SPDX-License-Identifier: Apache-2.0
// CLI11 splits the line into options and values; what values mean is decided here, so that each complaint names the
// option, the value and what is allowed.
#include "capi/admin/arguments.h"

#include "capi/admin/failure.h"
#include "capi/admin/numbers.h"
#include "capi/libcache.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <thread>

namespace admin {
namespace {

constexpr int64_t kLowestPort = 1025;
constexpr int64_t kHighestPort = 65535;
constexpr int64_t kHighestLogLevel = 4;
constexpr int64_t kHighestId = UINT32_MAX;
constexpr int64_t kMostGigabytes = 1 << 20;
constexpr int64_t kMostMegabytes = int64_t{1} << 40;
constexpr int64_t kLongestIdle = int64_t{1} << 32; // seconds
constexpr int kMostIds = 1 << 20;                  // of one -d
const std::string kSeeHelp = " See cache_admin --help.";

// The parser with its options, by the long name.
struct Line {
    CLI::App parser{"", "cache_admin"};
    std::map<const CLI::Option *, Command> commands;

    Line() {
        parser.set_help_flag(); // -h is the host name, and --help a command like the others
        parser.allow_extras();  // collected, to be reported together
        parser.allow_windows_style_options(false);
        add_command("--start", Command::Start);
        add_command("--stop", Command::Stop);
        add_command("-g,--generate_session", Command::GenerateSession);
        add_command("--list_sessions", Command::ListSessions);
        add_command("--server_info", Command::ServerInfo);
        add_command("--run", Command::Run);
        add_command("--version", Command::Version);
        add_command("--help", Command::Help);
        CLI::Option *sessions = add_value("-d,--destroy_session")->expected(1, kMostIds);
        sessions->inject_separator(); // an empty value between two -d tells them apart
        commands[sessions] = Command::DestroySession;
        commands[add_value("--destroy_cache")->expected(2)] = Command::DestroyCache;
        commands[add_value("--check")->expected(0, 2)] = Command::Check;
        parser.add_flag("--rows")->disable_flag_override();
        for (const char *names :
             {"-h,--hostname", "-p,--port", "-w,--workers", "-s,--spilldir", "-l,--loglevel", "-m,--shared_memory_size",
              "-r,--memory_cap_ratio", "--backing", "--headroom", "--spill_limit", "--idle_ttl", "--name", "--group"})
            add_value(names);
        parser.add_flag("--group_write")->disable_flag_override();
        parser.add_flag("--json")->disable_flag_override();
        parser.add_flag("--keep")->disable_flag_override();
    }

    void add_command(const char *names, Command command) {
        commands[parser.add_flag(names)->disable_flag_override()] = command;
    }

    // Every value is kept, so that an option given twice is seen here and not settled by the parser.
    CLI::Option *add_value(const char *names) {
        return parser.add_option(names)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }

    const std::vector<std::string> &values(const std::string &name) { return parser.get_option(name)->results(); }

    std::optional<std::string> value(const std::string &name) {
        const auto &all = values(name);
        if (all.size() > 1) throw ArgumentError("Option " + name + " is given twice." + kSeeHelp);
        return all.empty() ? std::nullopt : std::optional(all.front());
    }
};

void split(Line &line, std::vector<std::string> words) {
    std::reverse(words.begin(), words.end()); // the order in which CLI11 takes them
    try {
        line.parser.parse(words);
    } catch (const CLI::ArgumentMismatch &mismatch) {
        const std::string text = mismatch.what(); // begins with the option
        const std::string name = text.substr(0, text.find(':'));
        throw ArgumentError(line.parser.get_option_no_throw(name) ? "Option " + name + " needs a value." + kSeeHelp
                                                                  : text + "." + kSeeHelp); // --start=no
    } catch (const CLI::ParseError &error) {
        throw ArgumentError(std::string(error.what()) + "." + kSeeHelp);
    }
    const auto unknown = line.parser.remaining();
    if (unknown.empty()) return;
    std::string text = unknown.size() == 1 ? "Unknown option or word:" : "Unknown options or words:";
    for (const auto &word : unknown)
        text += " '" + word + "'";
    throw ArgumentError(text + "." + kSeeHelp);
}

// --help silently replaces a command before it; any other second command is an error.
Command the_command(Line &line) {
    const CLI::Option *chosen = nullptr;
    for (const CLI::Option *option : line.parser.parse_order()) {
        const auto command = line.commands.find(option);
        if (command == line.commands.end()) continue;
        // An option with values stands here once per value; whether it was repeated shows in its values.
        if (chosen == option && option->get_items_expected_max() > 0) continue;
        if (chosen && command->second != Command::Help)
            throw ArgumentError("Two commands are given, " + chosen->get_name() + " and " + option->get_name() +
                                ": each call takes one." + kSeeHelp);
        chosen = option;
    }
    return chosen ? line.commands[chosen] : Command::None;
}

const char *environment(const char *name) {
    const char *value = std::getenv(name);
    return value && *value ? value : nullptr;
}

// A number from the environment. A bad one is complained about at once and is an error only if no option overrides it.
std::optional<int64_t> from_environment(const char *name, int64_t lowest, int64_t highest, bool overridden) {
    const char *text = environment(name);
    if (!text) return std::nullopt;
    try {
        return number_within("Environment variable " + std::string(name), text, lowest, highest);
    } catch (const ArgumentError &error) {
        if (!overridden) throw;
        std::cerr << error.what() << " The option in the command line is used.\n";
        return std::nullopt;
    }
}

std::optional<int64_t> the_port(Line &line, Command command) {
    const auto given = line.value("--port");
    std::optional<int64_t> port;
    if (given) port = number_within("Option --port", *given, kLowestPort, kHighestPort);
    if (command == Command::Run) return port; // the environment's port is that of another server
    const char *variable = environment("LIBCACHE_PORT") ? "LIBCACHE_PORT" : "MS_CACHE_PORT";
    const auto preset = from_environment(variable, kLowestPort, kHighestPort, given.has_value());
    return port ? port : preset;
}

std::string the_ratio(const std::string &text) {
    const auto ratio = real_number(text);
    if (ratio && *ratio > 0 && *ratio <= 1) return text; // not a number and infinities are refused too
    throw ArgumentError("Option --memory_cap_ratio: '" + text + "' is not a number greater than 0 and at most 1.");
}

// A cache never leaves the machine: MS_CACHE_HOST, which the original did not check either, changes nothing.
std::optional<std::string> the_hostname(Line &line, Command command) {
    static const std::string kOnlyHost = "127.0.0.1";
    const auto given = line.value("--hostname");
    if (given && *given != kOnlyHost)
        throw ArgumentError("Option --hostname: '" + *given + "' is not " + kOnlyHost + ", the only host there is.");
    const char *preset = environment("MS_CACHE_HOST");
    if (command == Command::Start && preset && preset != kOnlyHost)
        std::cerr << "Environment variable MS_CACHE_HOST: '" << preset << "' is ignored, the server is on " << kOnlyHost
                  << ".\n";
    return given;
}

std::optional<std::string> the_spill_folder(Line &line) {
    const auto folder = line.value("--spilldir");
    if (folder && folder->empty()) throw ArgumentError("Option --spilldir: the name of the folder is empty.");
    return folder; // whether it can be used is for the server to see
}

std::optional<std::string> the_backing(Line &line) {
    const auto backing = line.value("--backing");
    if (backing && *backing != "auto" && *backing != "huge" && *backing != "memfd")
        throw ArgumentError("Option --backing: '" + *backing + "' is not auto, huge or memfd.");
    return backing;
}

// What --start and --run hand on to cache_server; checked with every command.
std::vector<std::string> the_server_options(Line &line, Command command) {
    std::vector<std::string> options;
    const auto hand_on = [&options](const char *name, const std::optional<std::string> &value) {
        if (value) options.insert(options.end(), {name, *value});
    };
    const auto number = [&line](const std::string &name, int64_t lowest, int64_t highest) {
        const auto text = line.value(name);
        if (text) number_within("Option " + name, *text, lowest, highest);
        return text;
    };
    const int64_t most_workers = std::max<int64_t>(std::thread::hardware_concurrency(), 100);
    hand_on("--hostname", the_hostname(line, command));
    hand_on("--workers", number("--workers", 1, most_workers));
    hand_on("--spilldir", the_spill_folder(line));
    auto level = number("--loglevel", 0, kHighestLogLevel);
    const auto preset = from_environment("GLOG_v", 0, kHighestLogLevel, level.has_value());
    if (!level && preset) level = std::to_string(*preset);
    hand_on("--loglevel", level);
    hand_on("--shared_memory_size", number("--shared_memory_size", 1, kMostGigabytes));
    const auto ratio = line.value("--memory_cap_ratio");
    if (ratio) hand_on("--memory_cap_ratio", the_ratio(*ratio));
    hand_on("--backing", the_backing(line));
    hand_on("--group", line.value("--group"));
    if (line.parser.get_option("--group_write")->count() > 0) options.emplace_back("--group_write");
    hand_on("--headroom", number("--headroom", 0, kMostMegabytes));
    hand_on("--spill_limit", number("--spill_limit", 1, kMostMegabytes));
    if (line.value("--spill_limit") && !line.value("--spilldir"))
        throw ArgumentError("Option --spill_limit needs --spilldir." + kSeeHelp);
    hand_on("--idle_ttl", number("--idle_ttl", 0, kLongestIdle));
    return options;
}

// The parser takes any word for the first value of an option that needs one: also an option behind a forgotten id.
uint32_t the_id(const std::string &option, const std::string &text, int64_t lowest) {
    if (text.starts_with('-') && !whole_number(text))
        throw ArgumentError("Option " + option + " needs a session id, not '" + text +
                            "'; cache_admin --list_sessions shows them." + kSeeHelp);
    return static_cast<uint32_t>(number_within("Option " + option, text, lowest, kHighestId));
}

std::vector<uint32_t> the_ids(Line &line) {
    std::vector<uint32_t> ids;
    for (const auto &text : line.values("--destroy_session")) {
        if (text.empty())
            throw ArgumentError("Option --destroy_session: it is given twice, or with an empty id." + kSeeHelp);
        ids.push_back(the_id("--destroy_session", text, 1));
    }
    const auto &cache = line.values("--destroy_cache");
    if (!cache.empty() && cache.size() != 2)
        throw ArgumentError("Option --destroy_cache needs two values, a session id and a cache id." + kSeeHelp);
    for (const auto &text : cache)
        ids.push_back(the_id("--destroy_cache", text, ids.empty() ? 1 : 0));
    const auto &checked = line.values("--check");
    if (checked == std::vector<std::string>{""}) return ids; // what the parser gives for no value
    for (const auto &text : checked)
        ids.push_back(the_id("--check", text, ids.empty() ? 1 : 0));
    return ids;
}

void check_program(const Arguments &arguments, bool separated) {
    if (arguments.command == Command::Run && arguments.program.empty())
        throw ArgumentError("Command --run needs a program, after '--'." + kSeeHelp);
    if (arguments.command != Command::Run && separated)
        throw ArgumentError("Only --run takes a program after '--'." + kSeeHelp);
}

} // namespace

Arguments parse_arguments(const std::vector<std::string> &words) {
    const auto separator = std::find(words.begin(), words.end(), "--");
    Line line;
    split(line, {words.begin(), separator});
    Arguments arguments;
    arguments.command = the_command(line);
    arguments.json = line.parser.get_option("--json")->count() > 0;
    const auto port = the_port(line, arguments.command);
    arguments.port_given = port.has_value();
    arguments.port = static_cast<unsigned>(port.value_or(arguments.command == Command::Run ? 0 : CACHE_DEFAULT_PORT));
    arguments.server_options = the_server_options(line, arguments.command);
    arguments.ids = the_ids(line);
    arguments.rows = line.parser.get_option("--rows")->count() > 0;
    if (arguments.rows && arguments.command != Command::Check)
        throw ArgumentError("Only --check takes --rows." + kSeeHelp);
    arguments.session_name = line.value("--name").value_or("");
    arguments.keep = line.parser.get_option("--keep")->count() > 0;
    if (arguments.keep && arguments.command != Command::GenerateSession)
        throw ArgumentError("Only --generate_session takes --keep." + kSeeHelp);
    if (separator != words.end()) arguments.program.assign(separator + 1, words.end());
    if (arguments.command == Command::None) throw ArgumentError("No command is given." + kSeeHelp);
    check_program(arguments, separator != words.end());
    if (arguments.json && arguments.command == Command::Run)
        throw ArgumentError("The output of --run is the program's: it takes no --json." + kSeeHelp);
    if (line.value("--name") && arguments.command != Command::GenerateSession && arguments.command != Command::Run)
        throw ArgumentError("Only --generate_session and --run take --name." + kSeeHelp);
    return arguments;
}

} // namespace admin
