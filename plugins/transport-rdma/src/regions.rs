//! Registered memory: what the runtime gave a key for, and how it is cut where a device registers no more
//! at a time.

use std::collections::HashMap;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};

use crate::verbs::{Device, Memory, Registered};

/// Cuts lie at multiples of this where the device's limit allows it: a large page of most systems.
const LARGE_PAGE: u64 = 2 << 20;

/// A part of a region that the device knows as one.
#[derive(Debug)]
struct Part {
    address: u64,
    length: u64,
    registered: Registered,
}

/// A region, in parts that follow each other.
#[derive(Debug)]
pub(crate) struct Region {
    address: u64,
    length: u64,
    parts: Vec<Part>,
    users: usize,
}

impl Region {
    /// Registers `length` bytes from `address` on.
    ///
    /// # Safety
    /// The memory stays until `take_back`.
    ///
    /// # Errors
    /// What the driver says, with what to do about it. Nothing stays registered then.
    pub(crate) unsafe fn register(
        device: &mut dyn Device,
        limit: u64,
        address: u64,
        length: u64,
    ) -> PluginResult<Self> {
        let mut region = Self { address, length, parts: Vec::new(), users: 1 };
        let unit = if limit >= LARGE_PAGE { LARGE_PAGE } else { 4096 };
        let longest = (limit - limit % unit).max(unit);
        let mut done = 0;
        while done < length {
            let at = address + done;
            // Cuts lie at round addresses, whatever the region begins with.
            let part = (longest - at % unit).min(length - done);
            // SAFETY: it is a part of the caller's memory.
            match unsafe { device.register(Memory { address: at, length: part }) } {
                Ok(registered) => region.parts.push(Part { address: at, length: part, registered }),
                Err(error) => {
                    let text = format!(
                        "registering {part} bytes with {}: {error}{}",
                        device.name(),
                        advice(error.number(), length)
                    );
                    let number = i64::from(error.number());
                    let _ = region.take_back(device);
                    let status = match error.number() {
                        libc::ENOMEM => Status::OutOfResources,
                        _ => Status::TransportError,
                    };
                    return Err(PluginError::new(status, text).with_vendor_code(number));
                }
            }
            done += part;
        }
        Ok(region)
    }

    /// # Errors
    /// What the driver says.
    pub(crate) fn take_back(&mut self, device: &mut dyn Device) -> PluginResult<()> {
        for part in self.parts.drain(..) {
            device.deregister(part.registered.handle).map_err(|error| {
                let number = i64::from(error.number());
                PluginError::new(Status::TransportError, format!("{}: {error}", device.name()))
                    .with_vendor_code(number)
            })?;
        }
        Ok(())
    }

    /// The longest run of at most `length` bytes from `address` on that lies in one part, and its keys.
    pub(crate) fn run(&self, address: u64, length: u64) -> Option<(u64, Registered)> {
        let after = self.parts.partition_point(|part| part.address <= address);
        let part = self.parts.get(after.checked_sub(1)?)?;
        let left = (part.address + part.length).checked_sub(address).filter(|left| *left > 0)?;
        Some((left.min(length), part.registered))
    }

    fn holds(&self, address: u64, length: u64) -> bool {
        address >= self.address
            && address.checked_add(length).is_some_and(|end| end <= self.address + self.length)
    }
}

/// What to do when registering failed.
pub(crate) fn advice(number: i32, needed: u64) -> String {
    if number != libc::ENOMEM {
        return String::new();
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is written during the call.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    let now = match limit.rlim_cur {
        _ if answer != 0 => "unknown".to_owned(),
        libc::RLIM_INFINITY => "unlimited".to_owned(),
        bytes => format!("{} KiB", bytes / 1024),
    };
    let need = needed.div_ceil(1024);
    format!(
        "; this process may lock {now} (`ulimit -l`), and this alone needs {need} KiB: raise the limit, \
         best to unlimited"
    )
}

/// All regions of a domain, by key.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    by_key: HashMap<u64, Region>,
    /// The same memory is registered once.
    keys: HashMap<(u64, u64), u64>,
    last_key: u64,
}

impl Regions {
    /// # Safety
    /// The memory stays until `remove`.
    ///
    /// # Errors
    /// See [`Region::register`].
    pub(crate) unsafe fn add(
        &mut self,
        device: &mut dyn Device,
        limit: u64,
        address: u64,
        length: u64,
    ) -> PluginResult<u64> {
        if let Some(&key) = self.keys.get(&(address, length))
            && let Some(region) = self.by_key.get_mut(&key)
        {
            region.users += 1;
            return Ok(key);
        }
        // SAFETY: the caller's promise.
        let region = unsafe { Region::register(device, limit, address, length) }?;
        self.last_key += 1;
        self.keys.insert((address, length), self.last_key);
        self.by_key.insert(self.last_key, region);
        Ok(self.last_key)
    }

    /// # Errors
    /// `InvalidArgument` for a key that is none; what the driver says.
    pub(crate) fn remove(&mut self, device: &mut dyn Device, key: u64) -> PluginResult<()> {
        let unknown = || PluginError::invalid(format!("{key} is no key of a region"));
        let region = self.by_key.get_mut(&key).ok_or_else(unknown)?;
        region.users -= 1;
        if region.users > 0 {
            return Ok(());
        }
        let place = (region.address, region.length);
        let answer = region.take_back(device);
        self.keys.remove(&place);
        self.by_key.remove(&key);
        answer
    }

    /// Whether a segment with this key lies in the key's region.
    pub(crate) fn holds(&self, key: u64, address: u64, length: u64) -> bool {
        self.by_key.get(&key).is_some_and(|region| region.holds(address, length))
    }

    /// See [`Region::run`].
    pub(crate) fn run(&self, key: u64, address: u64, length: u64) -> Option<(u64, Registered)> {
        self.by_key.get(&key)?.run(address, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::Library;
    use crate::verbs::mock::Mock;

    #[test]
    fn b026_a_long_region_is_split_and_its_parts_sum_to_its_length() {
        let mock = Mock::new(1);
        mock.faults().max_mr_bytes = 1 << 20;
        let mut device = mock.open("mock0").unwrap();
        let limit = device.limits().unwrap().max_mr_bytes;
        let memory = vec![0_u8; 3 << 20];
        let (address, length) = (memory.as_ptr() as u64, memory.len() as u64);
        // SAFETY: the memory outlives the regions.
        let region = unsafe { Region::register(&mut *device, limit, address, length) }.unwrap();
        let (mut at, mut runs) = (address, 0);
        while at < address + length {
            let (run, _) = region.run(at, u64::MAX).unwrap();
            assert!(run > 0 && run <= 1 << 20);
            (at, runs) = (at + run, runs + 1);
        }
        assert_eq!(at, address + length);
        assert!(runs >= 3);
        assert_eq!(mock.registered_bytes(), length);
        assert!(region.run(at, 1).is_none());
    }

    #[test]
    fn b087_a_low_limit_of_locked_memory_is_told_with_what_is_needed() {
        let mock = Mock::new(1);
        mock.faults().register_errno = Some(libc::ENOMEM);
        let mut device = mock.open("mock0").unwrap();
        let memory = vec![0_u8; 300 * 1024];
        // SAFETY: the memory outlives the regions.
        let error = unsafe {
            Region::register(&mut *device, 1 << 20, memory.as_ptr() as u64, memory.len() as u64)
        };
        let error = error.unwrap_err();
        assert_eq!(error.vendor_code, i64::from(libc::ENOMEM));
        assert!(
            error.message.contains("`ulimit -l`") && error.message.contains("300 KiB"),
            "{error}"
        );
    }

    #[test]
    fn the_same_memory_is_registered_once_and_what_fails_leaves_nothing() {
        let mock = Mock::new(1);
        let mut device = mock.open("mock0").unwrap();
        let mut regions = Regions::default();
        let memory = vec![0_u8; 10_000];
        let (address, length) = (memory.as_ptr() as u64, memory.len() as u64);
        let mut add = || {
            // SAFETY: the memory outlives the regions.
            unsafe { regions.add(&mut *device, 1 << 20, address, length) }.unwrap()
        };
        let keys = [add(), add()];
        assert_eq!(keys[0], keys[1]);
        assert_eq!(mock.registered_bytes(), length);
        assert!(regions.holds(keys[0], address + 1, length - 1));
        assert!(!regions.holds(keys[0], address + 1, length));
        regions.remove(&mut *device, keys[0]).unwrap();
        assert_eq!(mock.registered_bytes(), length);
        regions.remove(&mut *device, keys[0]).unwrap();
        assert_eq!(mock.registered_bytes(), 0);
        assert!(regions.remove(&mut *device, keys[0]).is_err());
        mock.faults().register_errno = Some(libc::EFAULT);
        // SAFETY: as above.
        let error = unsafe { regions.add(&mut *device, 1 << 20, address, length) }.unwrap_err();
        assert_eq!(error.vendor_code, i64::from(libc::EFAULT));
    }
}
