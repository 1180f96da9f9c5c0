//! What the NVIDIA plugin says of NVIDIA's interfaces, compared with NVIDIA's headers by a C compiler,
//! and what it says on NVIDIA's libraries where there is no driver. Headers and libraries come from
//! `PyPI`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::layout;
use crate::pip::fetch;
use crate::run::{Failure, cargo, output, run, workspace};

/// The packages, and where in them headers and libraries are.
const RUNTIMES: &[(&str, &str)] = &[
    ("nvidia-cuda-runtime-cu12==12.0.146", "nvidia/cuda_runtime"),
    ("nvidia-cuda-runtime-cu12==12.9.79", "nvidia/cuda_runtime"),
    ("nvidia-cuda-runtime==13.0.96", "nvidia/cu13"),
];
const NCCLS: &[(&str, &str)] = &[
    ("nvidia-nccl-cu12==2.16.5", "nvidia/nccl"),
    ("nvidia-nccl-cu12==2.32.3", "nvidia/nccl"),
    ("nvidia-nccl-cu13==2.32.3", "nvidia/nccl"),
];

/// A constant of `sys.rs`, and what NVIDIA's headers call it.
const CONSTANTS: &[(&str, &str)] = &[
    ("CUDA_SUCCESS", "cudaSuccess"),
    ("CUDA_ERROR_INVALID_VALUE", "cudaErrorInvalidValue"),
    ("CUDA_ERROR_MEMORY_ALLOCATION", "cudaErrorMemoryAllocation"),
    ("CUDA_ERROR_STUB_LIBRARY", "cudaErrorStubLibrary"),
    ("CUDA_ERROR_INSUFFICIENT_DRIVER", "cudaErrorInsufficientDriver"),
    ("CUDA_ERROR_NO_DEVICE", "cudaErrorNoDevice"),
    ("CUDA_ERROR_NOT_READY", "cudaErrorNotReady"),
    ("CUDA_ERROR_NOT_PERMITTED", "cudaErrorNotPermitted"),
    ("CUDA_ERROR_NOT_SUPPORTED", "cudaErrorNotSupported"),
    ("MEMCPY_HOST_TO_HOST", "cudaMemcpyHostToHost"),
    ("MEMCPY_HOST_TO_DEVICE", "cudaMemcpyHostToDevice"),
    ("MEMCPY_DEVICE_TO_HOST", "cudaMemcpyDeviceToHost"),
    ("MEMCPY_DEVICE_TO_DEVICE", "cudaMemcpyDeviceToDevice"),
    ("STREAM_NON_BLOCKING", "cudaStreamNonBlocking"),
    ("EVENT_DISABLE_TIMING", "cudaEventDisableTiming"),
    ("HOST_ALLOC_PORTABLE", "cudaHostAllocPortable"),
    ("CAPTURE_STATUS_NONE", "cudaStreamCaptureStatusNone"),
    ("CAPTURE_MODE_RELAXED", "cudaStreamCaptureModeRelaxed"),
    ("MEMORY_TYPE_UNREGISTERED", "cudaMemoryTypeUnregistered"),
    ("MEMORY_TYPE_HOST", "cudaMemoryTypeHost"),
    ("MEMORY_TYPE_DEVICE", "cudaMemoryTypeDevice"),
    ("MEMORY_TYPE_MANAGED", "cudaMemoryTypeManaged"),
    ("ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED", "cudaDevAttrGPUDirectRDMASupported"),
    ("ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_OPTIONS", "cudaDevAttrGPUDirectRDMAFlushWritesOptions"),
    ("ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING", "cudaDevAttrGPUDirectRDMAWritesOrdering"),
    ("FLUSH_OPTION_HOST", "cudaFlushGPUDirectRDMAWritesOptionHost"),
    ("WRITES_ORDERING_OWNER", "cudaGPUDirectRDMAWritesOrderingOwner"),
    ("FLUSH_TARGET_CURRENT_DEVICE", "cudaFlushGPUDirectRDMAWritesTargetCurrentDevice"),
    ("FLUSH_TO_OWNER", "cudaFlushGPUDirectRDMAWritesToOwner"),
    (
        "DRIVER_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS",
        "CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS",
    ),
    ("DRIVER_ATTRIBUTE_DMA_BUF_SUPPORTED", "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED"),
    ("POINTER_ATTRIBUTE_SYNC_MEMOPS", "CU_POINTER_ATTRIBUTE_SYNC_MEMOPS"),
    ("RANGE_HANDLE_DMA_BUF_FD", "CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD"),
    ("STREAM_WAIT_VALUE_GEQ", "CU_STREAM_WAIT_VALUE_GEQ"),
    ("UNIQUE_ID_BYTES", "NCCL_UNIQUE_ID_BYTES"),
    ("NCCL_SUCCESS", "ncclSuccess"),
    ("NCCL_SYSTEM_ERROR", "ncclSystemError"),
    ("NCCL_INVALID_ARGUMENT", "ncclInvalidArgument"),
    ("NCCL_INVALID_USAGE", "ncclInvalidUsage"),
    ("NCCL_REMOTE_ERROR", "ncclRemoteError"),
    ("NCCL_IN_PROGRESS", "ncclInProgress"),
    ("NCCL_INT8", "ncclInt8"),
    ("NCCL_UINT8", "ncclUint8"),
    ("NCCL_INT32", "ncclInt32"),
    ("NCCL_UINT32", "ncclUint32"),
    ("NCCL_INT64", "ncclInt64"),
    ("NCCL_UINT64", "ncclUint64"),
    ("NCCL_FLOAT16", "ncclFloat16"),
    ("NCCL_FLOAT32", "ncclFloat32"),
    ("NCCL_FLOAT64", "ncclFloat64"),
    ("NCCL_BFLOAT16", "ncclBfloat16"),
    ("NCCL_SUM", "ncclSum"),
    ("NCCL_PROD", "ncclProd"),
    ("NCCL_MAX", "ncclMax"),
    ("NCCL_MIN", "ncclMin"),
    ("NCCL_AVG", "ncclAvg"),
    ("CONFIG_MAGIC", "NCCL_API_MAGIC"),
    ("CONFIG_VERSION", "NCCL_VERSION(2, 18, 0)"),
    ("CONFIG_UNDEFINED", "NCCL_CONFIG_UNDEF_INT"),
];

/// Layouts, as conditions that hold in the headers if `sys.rs` is right: fields that later versions
/// added are left out where they are not there.
const LAYOUTS: &str = "
check(sizeof(cudaIpcMemHandle_t) == 64);
check(sizeof(struct cudaPointerAttributes) <= 128);
check(offsetof(struct cudaPointerAttributes, type) == 0);
check(offsetof(struct cudaPointerAttributes, device) == 4);
check(offsetof(struct cudaPointerAttributes, devicePointer) == 8);
check(offsetof(struct cudaPointerAttributes, hostPointer) == 16);
check(sizeof(cudaError_t) == 4 && sizeof(CUresult) == 4 && sizeof(ncclResult_t) == 4);
check(sizeof(ncclDataType_t) == 4 && sizeof(ncclRedOp_t) == 4);
check(sizeof(CUdevice) == 4 && sizeof(CUdeviceptr) == 8 && sizeof(CUcontext) == 8);
check(sizeof(ncclUniqueId) == 128);
check(offsetof(ncclConfig_t, magic) == 8 && offsetof(ncclConfig_t, version) == 12);
check(offsetof(ncclConfig_t, blocking) == 16);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0)
check(offsetof(ncclConfig_t, cgaClusterSize) == 20 && offsetof(ncclConfig_t, minCTAs) == 24);
check(offsetof(ncclConfig_t, maxCTAs) == 28 && offsetof(ncclConfig_t, netName) == 32);
check(offsetof(ncclConfig_t, splitShare) == 40 && sizeof(ncclConfig_t) >= 48);
#endif
";

/// What `crt/host_defines.h` gives to the headers; it comes with the compiler, which is not needed.
const HOST_DEFINES: &str = "
#define CUDARTAPI
#define CUDART_CB
#define __host__
#define __device__
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __align__(n) __attribute__((aligned(n)))
#define __cuda_builtin_vector_align8(tag, members) struct tag { members }
";

/// Compares, and says what was compared.
pub(crate) fn compare() -> Result<(), Failure> {
    let cache = workspace().join("target/nvidia");
    let packages = RUNTIMES.iter().chain(NCCLS);
    let mut folders = Vec::new();
    for (package, inside) in packages {
        folders.push(fetch("python3", &cache, package)?.join(inside));
    }
    let (runtimes, nccls) = folders.split_at(RUNTIMES.len());
    let sys = workspace().join("plugins/nvidia/src/sys.rs");
    let text = fs::read_to_string(&sys)
        .map_err(|error| Failure(format!("{} cannot be read: {error}", sys.display())))?;
    let place = |name: &str| cache.join(name);
    write(&place("stub/crt/host_defines.h"), HOST_DEFINES)?;
    for runtime in runtimes {
        for nccl in nccls {
            let source = place("compare.c");
            write(&source, &source_of(&text, &nccl.join("include/nccl.h"))?)?;
            let mut compiler = Command::new("cc");
            compiler.args(["-std=gnu11", "-fsyntax-only", "-Wconversion", "-Werror"]);
            for folder in [runtime.join("include"), nccl.join("include"), place("stub")] {
                compiler.arg("-isystem").arg(folder);
            }
            run(compiler.arg(&source))?;
        }
    }
    println!("sys.rs agrees with {} headers", RUNTIMES.len() * NCCLS.len());
    let plugins = plugins(&cache)?;
    for (runtime, (package, _)) in runtimes.iter().zip(RUNTIMES) {
        without_driver(&plugins, &runtime.join("lib"), package)?;
    }
    Ok(())
}

/// Builds the command and the plugin; gives a folder with the plugin alone.
fn plugins(cache: &Path) -> Result<PathBuf, Failure> {
    run(&mut cargo(&["build", "-p", "iccl-cli", "-p", "iccl-plugin-nvidia"]))?;
    let folder = cache.join("plugins");
    let built = layout::folder("dev").join("libiccl_plugin_nvidia.so");
    fs::create_dir_all(&folder)
        .and_then(|()| fs::copy(built, folder.join("libiccl_nvidia.so")))
        .map_err(|error| Failure(format!("{} cannot be made: {error}", folder.display())))?;
    Ok(folder)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, text))
        .map_err(|error| Failure(format!("{} cannot be written: {error}", path.display())))
}

/// A C file that compiles if everything agrees.
fn source_of(sys: &str, nccl: &Path) -> Result<String, Failure> {
    let mut source = String::from(
        "#include <stddef.h>\n#include <cuda.h>\n#include <driver_types.h>\n\
         #include <cuda_runtime_api.h>\n\
         /* What only a compiler for cards has the headers of. */\n\
         #define __CUDA_RUNTIME_H__\n#define __CUDA_FP16_H__\n#define __CUDA_BF16_H__\n\
         #define __CUDA_FP8_H__\n#define __CUDA_BF16_TYPES_EXIST__\n#include <nccl.h>\n\
         #define check(condition) _Static_assert(condition, #condition)\n",
    );
    source += LAYOUTS;
    let header = fs::read_to_string(nccl)
        .map_err(|error| Failure(format!("{} cannot be read: {error}", nccl.display())))?;
    // NCCL 2.16 has its magic number in the initialiser only, and says nothing of what is undefined.
    if !header.contains("NCCL_API_MAGIC") {
        let magic = header.lines().find(|line| line.contains("/* magic */"));
        let number = magic.and_then(|line| line.trim().split(',').next()).unwrap_or_default();
        let _ = writeln!(source, "#define NCCL_API_MAGIC {number}");
    }
    source +=
        "#ifndef NCCL_CONFIG_UNDEF_INT\n#define NCCL_CONFIG_UNDEF_INT (-2147483647 - 1)\n#endif\n";
    let mut compared = 0;
    for line in sys.lines().filter_map(|line| line.strip_prefix("pub(crate) const ")) {
        let parts = line.split_once(": ").zip(line.trim_end_matches(';').split_once(" = "));
        let Some(((name, _), (_, value))) = parts else {
            return Err(Failure(format!("sys.rs: `{line}` is no constant of one line")));
        };
        let Some((_, theirs)) = CONSTANTS.iter().find(|(ours, _)| *ours == name) else {
            return Err(Failure(format!("sys.rs: xtask does not know what {name} is for NVIDIA")));
        };
        let value = match value {
            "c_int::MIN" => "(-2147483647 - 1)".to_owned(),
            number => number.replace('_', ""),
        };
        let _ = writeln!(source, "check((long long)({theirs}) == (long long)({value}));");
        compared += 1;
    }
    if compared != CONSTANTS.len() {
        return Err(Failure(format!("sys.rs has {compared} constants of {}", CONSTANTS.len())));
    }
    source += "void calls(void *p, int i, unsigned u, size_t n, unsigned long long l, ncclUniqueId id) {\n";
    for signature in signatures(sys) {
        let (is_optional, name, arguments) = signature?;
        // Later versions have it, this one need not.
        if is_optional && name.starts_with("nccl") && !header.contains(&format!(" {name}(")) {
            continue;
        }
        let _ = writeln!(source, "    (void){name}({});", arguments.join(", "));
    }
    source += "}\n";
    Ok(source)
}

/// The functions of `sys.rs`: whether they are optional, their names, and a C variable for each
/// argument.
fn signatures(sys: &str) -> impl Iterator<Item = Result<(bool, &str, Vec<&'static str>), Failure>> {
    sys.match_indices("fn ").filter_map(|(at, _)| {
        let line = sys[..at].rsplit('\n').next().unwrap_or_default().trim();
        if !line.is_empty() && line != "optional" {
            return None;
        }
        let rest = &sys[at + "fn ".len()..];
        let (name, rest) = rest.split_once('(')?;
        let (arguments, _) = rest.split_once(';')?;
        let (arguments, _) = arguments.rsplit_once(')').unwrap_or((arguments, ""));
        let types = arguments.split(',').filter_map(|argument| argument.split_once(": "));
        let variables = types.map(|(_, kind)| variable(kind.trim()));
        Some(variables.collect::<Result<_, _>>().map(|list| (line == "optional", name, list)))
    })
}

/// A variable of C that only a parameter of the same kind takes without a warning.
fn variable(kind: &str) -> Result<&'static str, Failure> {
    Ok(match kind {
        "Stream" | "Event" | "Context" | "Communicator" => "p",
        pointer if pointer.starts_with('*') || pointer.starts_with("unsafe extern") => "p",
        "c_int" | "CudaError" | "DriverResult" | "DriverDevice" | "NcclResult" => "i",
        "c_uint" => "u",
        "usize" => "n",
        "u64" | "c_ulonglong" | "DevicePointer" => "l",
        "UniqueId" => "id",
        other => return Err(Failure(format!("sys.rs: xtask does not know the type {other}"))),
    })
}

/// On the real library, without a driver, the plugin finds no device, and says so in NVIDIA's words.
fn without_driver(plugins: &Path, libraries: &Path, package: &str) -> Result<(), Failure> {
    let setting = format!("plugin.nvidia.library_dir={}", libraries.display());
    let answer =
        output(
            Command::new(layout::folder("dev").join("iccl"))
                .env("ICCL_PLUGIN_PATH", plugins)
                .args(["plugins", "--json", "--set", "plugins.probe=inline", "--set", &setting]),
        )?;
    let answer: serde_json::Value = serde_json::from_slice(&answer)
        .map_err(|error| Failure(format!("`iccl plugins --json` is no JSON: {error}")))?;
    let plugins = answer["plugins"].as_array();
    let record = plugins.and_then(|all| all.iter().find(|one| one["name"] == "nvidia"));
    let record = record.ok_or_else(|| Failure("there is no plugin nvidia".to_owned()))?;
    let detail = record["detail"].as_str().unwrap_or_default();
    let is_expected = record["state"] == "active"
        || (record["reason"] == "no-device"
            && detail.contains("CUDA driver version is insufficient for CUDA runtime version"));
    if !is_expected {
        return Err(Failure(format!("{package}: the plugin says {record}")));
    }
    println!("{package}: {} {detail}", record["state"].as_str().unwrap_or_default());
    Ok(())
}
