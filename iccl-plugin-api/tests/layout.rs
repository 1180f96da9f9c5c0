//! The layout of every struct of the ABI: compared with a golden file, and with what C and C++
//! compilers make of the header.
//!
//! After a field was appended, `ICCL_BLESS=1 cargo test -p iccl-plugin-api --test layout` writes the
//! golden file anew; the difference must be additions at the end of structs only.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use iccl_plugin_api::note::PluginNote;
use iccl_plugin_api::tables::*;

/// One struct, and its fields in order.
struct StructLayout {
    name: &'static str,
    size: usize,
    align: usize,
    fields: Vec<FieldLayout>,
}

/// One field.
struct FieldLayout {
    name: &'static str,
    offset: usize,
    size: usize,
    align: usize,
}

/// Size and alignment of what a projection gives.
fn size_and_align<T, F>(_: impl Fn(&T) -> &F) -> (usize, usize) {
    (size_of::<F>(), align_of::<F>())
}

/// Measures structs. Naming too few or too many fields of one does not compile.
macro_rules! measure {
    ($($name:ident { $($field:ident),+ $(,)? })+) => {
        vec![$({
            let _every_field_is_named = |value: $name| {
                let $name { $($field: _),+ } = value;
            };
            StructLayout {
                name: stringify!($name),
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: vec![$({
                    let (size, align) = size_and_align(|value: &$name| &value.$field);
                    let offset = std::mem::offset_of!($name, $field);
                    FieldLayout { name: stringify!($field), offset, size, align }
                }),+],
            }
        }),+]
    };
}

/// Every struct that crosses the ABI.
fn structs() -> Vec<StructLayout> {
    measure! {
        ErrorInfo { vendor_code, message_length, reserved, message }
        Bytes { data, length }
        DeviceTable { struct_size, reserved, count, info, capabilities, open, close, allocate, free, memory_kind, copy, stream_create, stream_destroy, stream_query, stream_synchronize, host_function, stream_wait_value, write_value, event_create, event_destroy, event_record, event_query, flush, export_region, release_region, reduce, async_error }
        DeviceInfo { name, pci_address, numa_node, reserved, memory_bytes }
        DeviceCapabilities { stream_to_host, host_to_stream, host_accessible, has_reduce, reduce_dtypes, reduce_ops, region_forms, region_alignment }
        MemoryRegion { form, descriptor, address, offset, length, cookie }
        CollectivesTable { struct_size, reserved, capabilities, unique_id, communicator_create, communicator_destroy, communicator_abort, async_error, call, group_start, group_end }
        CollectiveCall { collective, dtype, op, root, count, send, receive, send_counts, send_displacements, receive_counts, receive_displacements, reserved }
        CollectivesCapabilities { unique_id_bytes, support, support_count, flags, library }
        CollectiveSupport { collective, dtypes, ops, reserved }
        TransportTable { struct_size, reserved, capabilities, open, address, channel_open, channel_state, post_send, post_receive, progress, arm, event_descriptor, wait, wake, register_region, deregister_region, quiesce, channel_close, close }
        TransportCapabilities { name, reach, memory_kinds, latency_ns, bytes_per_us, largest_message }
        DomainOptions { communicator, rank, ranks, local_ranks, reserved, job_key, interface, handshake_timeout_us, connect_timeout_us }
        ChannelOptions { peer, dial, channel, link_digest, address }
        Segment { address, length, key }
        Message { token, segments, segment_count, envelope }
        Completion { channel, token, kind, status, length, envelope, vendor_code }
        PluginTable { struct_size, abi_major, abi_minor, reserved, describe, probe, self_test, device, collectives, transport }
        PluginInfo { name, version, vendor, description, settings, setting_count }
        SettingSpec { key, kind, default_text, description }
        SettingValue { key, value }
        HostTable { struct_size, abi_minor, context, log, log_level }
        PluginNote { owner_bytes, description_bytes, note_type, owner, abi_major, abi_minor_min, abi_minor, families, name, version, sdk }
    }
}

/// The layout as text, a line for each struct and each field.
fn as_text(structs: &[StructLayout]) -> String {
    let mut text = String::new();
    for StructLayout { name, size, align, fields } in structs {
        let _ = writeln!(text, "{name} size {size} align {align}");
        for FieldLayout { name, offset, size, align } in fields {
            let _ = writeln!(text, "  {name} offset {offset} size {size} align {align}");
        }
    }
    text
}

/// A file of this package.
fn package_file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn the_layout_is_the_golden_one() {
    let golden = package_file(&format!("layout/abi-{ABI_MAJOR}.{ABI_MINOR}.txt"));
    let measured = as_text(&structs());
    if std::env::var_os("ICCL_BLESS").is_some() {
        std::fs::write(&golden, &measured).expect("the golden file is writable");
    }
    let expected = std::fs::read_to_string(&golden)
        .unwrap_or_else(|error| panic!("{}: {error}", golden.display()));
    for (line, (expected, measured)) in expected.lines().zip(measured.lines()).enumerate() {
        assert_eq!(expected, measured, "{}:{}", golden.display(), line + 1);
    }
    assert_eq!(expected.lines().count(), measured.lines().count());
}

/// A program that prints the layout of every struct as the header has it.
fn probe_program() -> String {
    let mut program = String::from(
        "#include <iccl_plugin.h>\n#include <stddef.h>\n#include <stdio.h>\n\
         #ifdef __cplusplus\n#define ALIGN alignof\n#else\n#define ALIGN _Alignof\n#endif\n\
         int main(void) {\n",
    );
    for StructLayout { name, fields, .. } in structs() {
        let c_name = c_name(name);
        let _ = writeln!(
            program,
            "printf(\"{name} size %zu align %zu\\n\", sizeof({c_name}), (size_t)ALIGN({c_name}));"
        );
        for FieldLayout { name, align, .. } in fields {
            // C can't ask for a member's alignment without its type; its offset and size say it.
            let _ = writeln!(
                program,
                "printf(\"  {name} offset %zu size %zu align {align}\\n\", \
                 offsetof({c_name}, {name}), sizeof((({c_name} *)0)->{name}));"
            );
        }
    }
    program.push_str("return 0;\n}\n");
    program
}

/// The header's name of a struct: `DeviceTable` is `iccl_device_table`.
fn c_name(name: &str) -> String {
    let mut c_name = String::from("iccl");
    for character in name.chars() {
        if character.is_ascii_uppercase() {
            c_name.push('_');
        }
        c_name.push(character.to_ascii_lowercase());
    }
    c_name
}

/// Compiles and runs the program, and compares what it prints.
fn compare_with_compiler(compiler: &str, standard: &str, extension: &str) {
    let folder = tempfile::tempdir().expect("a folder for the program");
    let source = folder.path().join(format!("layout.{extension}"));
    let program = folder.path().join("layout");
    std::fs::write(&source, probe_program()).expect("the source is writable");
    let output = Command::new(compiler)
        .args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
        .arg(package_file("include"))
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap_or_else(|error| panic!("this test needs the compiler `{compiler}`: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new(&program).output().expect("the program runs");
    let printed = String::from_utf8(output.stdout).expect("the program prints text");
    let expected = as_text(&structs());
    for (expected, printed) in expected.lines().zip(printed.lines()) {
        assert_eq!(expected, printed, "{compiler} {standard}");
    }
    assert_eq!(expected.lines().count(), printed.lines().count());
}

#[test]
fn the_header_has_the_same_layout_in_c11() {
    compare_with_compiler("cc", "-std=c11", "c");
}

#[test]
fn the_header_has_the_same_layout_in_cpp17() {
    compare_with_compiler("c++", "-std=c++17", "cpp");
}
