#include "tools/inspect/doctor_command.hpp"

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>
#include <crossrank/json.hpp>
#include <crossrank/nccl.hpp>
#include <crossrank/tensor.hpp>
#include <crossrank/version.hpp>

#include "lib/core/text/terminal_text.hpp"
#include "tools/cli/size_text.hpp"

namespace crossrank::tools {
namespace {

constexpr char const* doctor_footer =
    R"(Opens the CUDA driver and NCCL as the library does. Shows their files and versions, the functions that they lack, and
each GPU with its identity, its memory and the GPUs whose memory it can access. Sends 1 MiB to each GPU and back, and
compares the bytes. Without a driver, a GPU or NCCL it says what was tried and what to do. CROSSRANK_CUDA_LIBRARY and
CROSSRANK_NCCL_LIBRARY name other files. Exit code: 0, also without a GPU; 1 when a GPU does not work; 2 for a
malformed variable.
With --json: command, ok, exit_code, version, cuda, nccl and devices.)";

/// Sends 1 MiB to the device and back. Returns the error, or an empty text when all bytes came back.
std::string round_trip(Device device) {
  try {
    std::vector<std::uint8_t> values(std::size_t{1} << 20U);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
    auto const sent = Tensor::of<std::uint8_t>(values, {static_cast<std::int64_t>(values.size())});
    auto const received = sent.to(device).to(Device::cpu());
    bool const equal = std::memcmp(received.bytes().data(), values.data(), values.size()) == 0;
    return equal ? "" : "1 MiB came back with other bytes";
  } catch (Error const& error) {
    return error.what();
  }
}

Json device_report(Device device) {
  try {
    auto const info = cuda::device_info(device);
    Json peers = Json::array();
    for (auto const peer : info.peers) peers.push_back(peer.index);
    return {{"device", device.index},
            {"name", info.name},
            {"uuid", info.uuid},
            {"pci", info.pci},
            {"compute_capability",
             std::to_string(info.compute_capability[0]) + "." + std::to_string(info.compute_capability[1])},
            {"total_bytes", info.total_bytes},
            {"free_bytes", info.free_bytes},
            {"memory_pools", info.has_memory_pools},
            {"peers", peers},
            {"error", round_trip(device)}};
  } catch (Error const& error) {
    return {{"device", device.index}, {"error", error.what()}};
  }
}

/// NCCL's library, or why there is none.
Json nccl_report() {
  try {
    auto const library = nccl::library_info();
    return {{"library", library.path}, {"version", library.version}, {"missing", library.missing}};
  } catch (UnavailableError const& error) {
    return {{"unavailable", error.what()}};
  }
}

/// Everything that the command prints. Never throws for a machine without a GPU.
Json machine_report() {
  Json report{{"command", "doctor"},
              {"version", CROSSRANK_VERSION},
              {"cuda", Json::object()},
              {"nccl", nccl_report()},
              {"devices", Json::array()}};
  try {
    auto const driver = cuda::driver_info();
    report["cuda"] = {{"library", driver.path}, {"version", driver.version}, {"missing", driver.missing}};
    cuda::require_driver();  // says why a driver finds no GPU
    for (int i = 0; i < cuda::device_count(); ++i) report["devices"].push_back(device_report(Device::cuda(i)));
  } catch (UnavailableError const& error) {
    report["cuda"]["unavailable"] = error.what();
  }
  report["ok"] = true;
  for (auto const& device : report["devices"]) {
    if (!device["error"].get<std::string>().empty()) report["ok"] = false;
  }
  return report;
}

std::string joined(Json const& values) {
  std::string text;
  for (auto const& value : values) {
    text += (text.empty() ? "" : ", ") + (value.is_string() ? value.get<std::string>() : value.dump());
  }
  return text.empty() ? "none" : text;
}

void print_device(Json const& device) {
  auto const text = [&](char const* key) { return terminal_text(device[key].get<std::string>()); };
  if (!device.contains("name")) {
    std::printf("GPU %d: %s\n", device["device"].get<int>(), text("error").c_str());
    return;
  }
  std::printf("GPU %d: %s, compute capability %s\n", device["device"].get<int>(), text("name").c_str(),
              text("compute_capability").c_str());
  std::printf("  uuid         %s\n  PCI          %s\n", text("uuid").c_str(), text("pci").c_str());
  std::printf("  memory       %s, %s free\n", size_text(device["total_bytes"].get<std::uint64_t>()).c_str(),
              size_text(device["free_bytes"].get<std::uint64_t>()).c_str());
  std::printf("  peer access  %s\n", joined(device["peers"]).c_str());
  std::printf("  round trip   %s\n", text("error").empty() ? "1 MiB, equal" : text("error").c_str());
}

void print_nccl(Json const& library) {
  if (library.contains("unavailable")) {
    std::printf("NCCL: not used on this machine\n  %s\n",
                terminal_text(library["unavailable"].get<std::string>()).c_str());
    return;
  }
  auto const version = library["version"].get<int>();
  std::printf("NCCL: %d.%d.%d, %s\n", version / 10'000, version / 100 % 100, version % 100,
              terminal_text(library["library"].get<std::string>()).c_str());
  std::printf("  missing      %s\n", terminal_text(joined(library["missing"])).c_str());
}

void print_report(Json const& report) {
  std::printf("crossrank %s\n", CROSSRANK_VERSION);
  auto const& driver = report["cuda"];
  auto const why_not = driver.contains("unavailable") ? terminal_text(driver["unavailable"].get<std::string>()) : "";
  if (!driver.contains("library")) {
    std::printf("CUDA: not used on this machine\n  %s\n", why_not.c_str());
    print_nccl(report["nccl"]);
    return;
  }
  auto const version = driver["version"].get<int>();
  std::printf("CUDA: driver for CUDA %d.%d, %s\n", version / 1000, version % 1000 / 10,
              terminal_text(driver["library"].get<std::string>()).c_str());
  std::printf("  missing      %s\n", terminal_text(joined(driver["missing"])).c_str());
  print_nccl(report["nccl"]);
  for (auto const& device : report["devices"]) print_device(device);
  if (!why_not.empty()) std::printf("GPUs: none\n  %s\n", why_not.c_str());
}

}  // namespace

void add_doctor_command(CLI::App& app, int& exit_code) {
  auto* const doctor =
      app.add_subcommand("doctor", "Show what the library finds on this machine: driver, NCCL and GPUs");
  auto const json = std::make_shared<bool>(false);
  doctor->add_flag("--json", *json, "Print the result as one JSON object");
  doctor->footer(doctor_footer);
  doctor->callback([json, &exit_code] {
    auto report = machine_report();
    exit_code = report["ok"].get<bool>() ? 0 : 1;
    report["exit_code"] = exit_code;
    if (*json) {
      std::printf("%s\n", report.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    } else {
      print_report(report);
    }
  });
}

}  // namespace crossrank::tools
