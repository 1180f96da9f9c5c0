//! Reads an ELF file as the loader would, without being killed by it: the loader maps segments that
//! a truncated file does not have, and the first touch of them ends the process.

use std::fs::File;

use iccl_plugin_api::note::{NOTE_SECTION, NoteInfo, parse};
use iccl_plugin_api::tables::{ABI_MAJOR, ABI_MINOR, ENTRY_SYMBOL, ROOT_SYMBOL};
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::read::{ReadCache, ReadRef};

use super::file::Failure;
use super::reason::{Reason, Refusal};

/// The header of this machine's files.
type Header = elf::FileHeader64<object::Endianness>;

/// Bytes of the identification at the front of every ELF file.
const IDENT_BYTES: u64 = 16;

/// The machine that this program runs on, as ELF numbers it, and its name.
const MACHINE: (u16, &str) = if cfg!(target_arch = "x86_64") {
    (elf::EM_X86_64, "x86-64")
} else if cfg!(target_arch = "aarch64") {
    (elf::EM_AARCH64, "aarch64")
} else {
    panic!("iccl runs on x86-64 and aarch64")
};

/// Checks the whole file of `length` bytes, and reads the plugin's note.
pub(super) fn check(file: &File, length: u64) -> Result<NoteInfo, Failure> {
    let note = read_note(&ReadCache::new(file), length)?;
    match check_abi(&note) {
        Ok(()) => Ok(note),
        Err(refusal) => Err(Failure { refusal, note: Some(note) }),
    }
}

/// Checks the file's structure up to its note.
fn read_note<'data>(data: impl ReadRef<'data>, length: u64) -> Result<NoteInfo, Refusal> {
    check_ident(data, length)?;
    let truncated = |what: &str| {
        Refusal::new(Reason::Truncated, format!("{what} lies beyond the end at {length} bytes"))
    };
    let header = Header::parse(data).map_err(|_| truncated("the ELF header"))?;
    let endian = header.endian().map_err(damaged)?;

    let machine = header.e_machine(endian);
    if machine != MACHINE.0 {
        return Err(Refusal::new(
            Reason::WrongMachine,
            format!("it is built for {}, this machine is {}", machine_name(machine), MACHINE.1),
        ));
    }
    if header.e_type(endian) != elf::ET_DYN {
        let detail = format!("its ELF type is {}, not 3 (shared object)", header.e_type(endian));
        return Err(Refusal::new(Reason::NotSharedObject, detail));
    }

    let segments =
        header.program_headers(endian, data).map_err(|_| truncated("the program header table"))?;
    for (index, segment) in segments.iter().enumerate() {
        let end = segment.p_offset(endian).checked_add(segment.p_filesz(endian));
        if segment.p_type(endian) == elf::PT_LOAD && end.is_none_or(|end| end > length) {
            let end = end.map_or("beyond all".to_owned(), |end| format!("at {end}"));
            return Err(Refusal::new(
                Reason::Truncated,
                format!("segment {index} ends {end}, the file at {length} bytes"),
            ));
        }
    }

    let table_end = header
        .e_shoff(endian)
        .saturating_add(u64::from(header.e_shnum(endian)) * u64::from(header.e_shentsize(endian)));
    if table_end > length {
        return Err(truncated("the section header table"));
    }
    let sections = header.sections(endian, data).map_err(damaged)?;
    let symbols = sections.symbols(endian, data, elf::SHT_DYNSYM).map_err(damaged)?;
    let exported = symbols.iter().any(|symbol| {
        symbol.st_shndx(endian) != elf::SHN_UNDEF
            && symbols
                .symbol_name(endian, symbol)
                .is_ok_and(|name| name == ENTRY_SYMBOL.as_bytes() || name == ROOT_SYMBOL.as_bytes())
    });
    if !exported {
        let detail = format!("neither {ROOT_SYMBOL} nor {ENTRY_SYMBOL} is exported");
        return Err(Refusal::new(Reason::NoEntry, detail));
    }

    let Some((_, section)) = sections.section_by_name(endian, NOTE_SECTION.as_bytes()) else {
        return Err(Refusal::new(Reason::NoNote, format!("it has no section {NOTE_SECTION}")));
    };
    let bytes = section.data(endian, data).map_err(damaged)?;
    parse(bytes).map_err(|error| Refusal::new(Reason::BadNote, error.to_string()))
}

/// Whether this is an ELF file of this machine's class and byte order at all.
fn check_ident<'data>(data: impl ReadRef<'data>, length: u64) -> Result<(), Refusal> {
    let magic = data.read_bytes_at(0, length.min(4)).unwrap_or_default();
    if magic != elf::ELFMAG.as_slice() {
        return Err(Refusal::new(Reason::NotElf, "it does not begin as ELF files do"));
    }
    let ident = data.read_bytes_at(0, IDENT_BYTES).map_err(|()| {
        Refusal::new(Reason::Truncated, format!("it ends within its header, at {length} bytes"))
    })?;
    let (class, order) = (ident[4], ident[5]);
    if class != elf::ELFCLASS64 {
        return Err(Refusal::new(Reason::WrongMachine, "it is no 64-bit file"));
    }
    if order != elf::ELFDATA2LSB {
        return Err(Refusal::new(Reason::WrongMachine, "it is not little-endian"));
    }
    Ok(())
}

/// Whether a plugin with this note can work with this host.
fn check_abi(note: &NoteInfo) -> Result<(), Refusal> {
    if note.abi_major != ABI_MAJOR {
        let detail =
            format!("plugin {}: ABI {}, host accepts {ABI_MAJOR}", note.name, note.abi_major);
        return Err(Refusal::new(Reason::AbiMajor, detail));
    }
    if note.abi_minor_min > ABI_MINOR {
        let detail = format!(
            "plugin {}: needs ABI {ABI_MAJOR}.{}, host has {ABI_MAJOR}.{ABI_MINOR}",
            note.name, note.abi_minor_min
        );
        return Err(Refusal::new(Reason::AbiMinor, detail));
    }
    Ok(())
}

fn damaged(error: object::Error) -> Refusal {
    Refusal::new(Reason::DamagedElf, error.to_string())
}

/// A machine in words.
fn machine_name(machine: u16) -> String {
    match machine {
        elf::EM_X86_64 => "x86-64".to_owned(),
        elf::EM_AARCH64 => "aarch64".to_owned(),
        elf::EM_386 => "x86 (32 bits)".to_owned(),
        elf::EM_ARM => "arm (32 bits)".to_owned(),
        elf::EM_RISCV => "riscv".to_owned(),
        elf::EM_PPC64 => "ppc64".to_owned(),
        elf::EM_S390 => "s390".to_owned(),
        elf::EM_LOONGARCH => "loongarch".to_owned(),
        other => format!("ELF machine {other}"),
    }
}
