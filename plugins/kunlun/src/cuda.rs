//! P800's libcudart: CUDA's functions over libxpurt, as everybody uses these cards.

use std::ffi::{c_char, c_int, c_void};

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::{DeviceFacts, HostCallback, PluginError, PluginResult, Progress};
use iccl_plugin_api::tables::stream_to_host;
use iccl_vendor_support::{
    Direction, enqueue_callback, numa_node, pci_address, static_text, written_text,
};

use crate::face::{Copy, Face};
use crate::native::capabilities;
use crate::sys;

/// P800's libcudart.
#[derive(Debug)]
pub(crate) struct Cuda {
    cuda: sys::Cuda,
}

impl Cuda {
    /// Takes a libcudart for Kunlun's if it sees the same cards as libxpurt.
    pub(crate) fn new(cuda: sys::Cuda, cards: c_int) -> PluginResult<Self> {
        let mut count = 0;
        // SAFETY: there is room for the number.
        let answer = unsafe { (cuda.cudaGetDeviceCount)(&raw mut count) };
        cuda.check("cudaGetDeviceCount", answer)?;
        if count == cards {
            return Ok(Self { cuda });
        }
        let text =
            format!("libcudart has {count} cards and libxpurt {cards}: it is another maker's");
        Err(PluginError::invalid(text))
    }

    /// `Pending` for an answer that says so.
    fn progress(&self, call: &'static str, answer: sys::CudaError) -> PluginResult<Progress> {
        if answer == sys::CUDA_ERROR_NOT_READY {
            // It is remembered as a failure of the thread, which it is not.
            // SAFETY: no arguments.
            unsafe { (self.cuda.cudaGetLastError)() };
            return Ok(Progress::Pending);
        }
        self.cuda.check(call, answer).map(|()| Progress::Done)
    }
}

impl Face for Cuda {
    fn chosen(&self) -> PluginResult<i32> {
        let mut device = 0;
        // SAFETY: there is room for the number.
        let answer = unsafe { (self.cuda.cudaGetDevice)(&raw mut device) };
        self.cuda.check("cudaGetDevice", answer)?;
        Ok(device)
    }

    fn choose(&self, ordinal: i32) -> PluginResult<()> {
        // SAFETY: no pointers.
        let answer = unsafe { (self.cuda.cudaSetDevice)(ordinal) };
        self.cuda.check(format_args!("cudaSetDevice({ordinal})"), answer)
    }

    fn facts(&self, ordinal: i32) -> PluginResult<DeviceFacts> {
        let mut properties = vec![0_u8; sys::DEVICE_PROPERTIES_BYTES];
        let mut address = [0_u8; 64];
        // SAFETY: there is room for both answers, and the address is cut at the length that is passed.
        unsafe {
            let place = properties.as_mut_ptr().cast();
            let answer = (self.cuda.cudaGetDeviceProperties)(place, ordinal);
            self.cuda.check(format_args!("cudaGetDeviceProperties({ordinal})"), answer)?;
            let place = address.as_mut_ptr().cast::<c_char>();
            let answer = (self.cuda.cudaDeviceGetPCIBusId)(place, address.len() as c_int, ordinal);
            self.cuda.check(format_args!("cudaDeviceGetPCIBusId({ordinal})"), answer)?;
        }
        let mut bytes = 0;
        if let Some(get) = self.cuda.cudaMemGetInfo {
            let mut free = 0;
            // SAFETY: there is room for both numbers.
            let answer = unsafe { get(&raw mut free, &raw mut bytes) };
            self.cuda.check("cudaMemGetInfo", answer)?;
        }
        let name = written_text(&properties[..256]);
        let address = pci_address(&written_text(&address)).unwrap_or_default();
        let numa_node = numa_node(&address);
        Ok(DeviceFacts {
            name: if name.is_empty() { "Kunlun P800" } else { name.leak() },
            pci_address: address.leak(),
            numa_node,
            memory_bytes: bytes as u64,
            capabilities: capabilities(stream_to_host::EVENT | stream_to_host::HOST_FUNCTION),
        })
    }

    fn allocate(&self, bytes: usize, kind: MemoryKind) -> PluginResult<*mut c_void> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: there is room for the pointer.
        let (call, answer) = unsafe {
            if kind == MemoryKind::Device {
                ("cudaMalloc", (self.cuda.cudaMalloc)(&raw mut pointer, bytes))
            } else {
                let flags = sys::CUDA_HOST_ALLOC_DEFAULT;
                ("cudaHostAlloc", (self.cuda.cudaHostAlloc)(&raw mut pointer, bytes, flags))
            }
        };
        self.cuda.check(format_args!("{call}({bytes})"), answer)?;
        Ok(pointer)
    }

    unsafe fn free(&self, pointer: *mut c_void, kind: MemoryKind) -> PluginResult<()> {
        if kind == MemoryKind::Device {
            // SAFETY: the caller promises it.
            self.cuda.check("cudaFree", unsafe { (self.cuda.cudaFree)(pointer) })
        } else {
            // SAFETY: as above.
            self.cuda.check("cudaFreeHost", unsafe { (self.cuda.cudaFreeHost)(pointer) })
        }
    }

    fn foreign_kind(&self, ordinal: i32, pointer: *const c_void) -> PluginResult<MemoryKind> {
        let mut attributes =
            sys::PointerAttributes { memory_type: -1, device: -1, reserved: [0; 31] };
        // SAFETY: there is room for what any version writes.
        let answer = unsafe { (self.cuda.cudaPointerGetAttributes)(&raw mut attributes, pointer) };
        self.cuda.check("cudaPointerGetAttributes", answer)?;
        match attributes.memory_type {
            sys::CUDA_MEMORY_TYPE_UNREGISTERED => Ok(MemoryKind::Host),
            sys::CUDA_MEMORY_TYPE_HOST => Ok(MemoryKind::PinnedHost),
            sys::CUDA_MEMORY_TYPE_DEVICE if attributes.device != ordinal => {
                let owner = attributes.device;
                let text = format!("{pointer:p} is memory of card {owner}, not of card {ordinal}");
                Err(PluginError::invalid(text))
            }
            sys::CUDA_MEMORY_TYPE_DEVICE | sys::CUDA_MEMORY_TYPE_MANAGED => Ok(MemoryKind::Device),
            other => {
                let text = format!("{pointer:p} is memory of unknown type {other}");
                Err(PluginError::invalid(text))
            }
        }
    }

    unsafe fn copy(&self, stream: sys::Stream, copy: Copy) -> PluginResult<()> {
        let Copy { to, from, bytes, direction } = copy;
        self.enqueue_on(stream)?;
        let kind = match direction {
            Direction::HostToHost => sys::CUDA_HOST_TO_HOST,
            Direction::HostToDevice => sys::CUDA_HOST_TO_DEVICE,
            Direction::DeviceToHost => sys::CUDA_DEVICE_TO_HOST,
            Direction::DeviceToDevice => sys::CUDA_DEVICE_TO_DEVICE,
        };
        // SAFETY: the caller promises both sides until the stream is past the copy.
        let answer = unsafe { (self.cuda.cudaMemcpyAsync)(to, from, bytes, kind, stream) };
        self.cuda.check(format_args!("cudaMemcpyAsync({bytes} bytes, {direction:?})"), answer)
    }

    fn stream_create(&self) -> PluginResult<sys::Stream> {
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUDA_STREAM_NON_BLOCKING;
        // SAFETY: there is room for the handle.
        let answer = unsafe { (self.cuda.cudaStreamCreateWithFlags)(&raw mut stream, flags) };
        self.cuda.check("cudaStreamCreateWithFlags", answer)?;
        Ok(stream)
    }

    fn stream_destroy(&self, stream: sys::Stream) -> PluginResult<()> {
        // SAFETY: the caller passes a stream of `stream_create`, once.
        let (done, destroyed) = unsafe {
            ((self.cuda.cudaStreamSynchronize)(stream), (self.cuda.cudaStreamDestroy)(stream))
        };
        self.cuda.check("cudaStreamSynchronize", done)?;
        self.cuda.check("cudaStreamDestroy", destroyed)
    }

    fn enqueue_on(&self, stream: sys::Stream) -> PluginResult<()> {
        let Some(is_capturing) = self.cuda.cudaStreamIsCapturing else { return Ok(()) };
        let mut status = sys::CUDA_CAPTURE_STATUS_NONE;
        // SAFETY: the caller passes a stream; there is room for the number.
        let answer = unsafe { is_capturing(stream, &raw mut status) };
        self.cuda.check("cudaStreamIsCapturing", answer)?;
        if status == sys::CUDA_CAPTURE_STATUS_NONE {
            Ok(())
        } else {
            Err(PluginError::not_supported("the stream is being captured into a graph"))
        }
    }

    fn stream_query(&self, _ordinal: i32, stream: sys::Stream) -> PluginResult<Progress> {
        // SAFETY: the caller passes a stream.
        self.progress("cudaStreamQuery", unsafe { (self.cuda.cudaStreamQuery)(stream) })
    }

    fn host_function(&self, stream: sys::Stream, callback: HostCallback) -> PluginResult<()> {
        self.enqueue_on(stream)?;
        enqueue_callback(callback, |function, user| {
            // SAFETY: the stream calls the function with its argument, once.
            let answer = unsafe { (self.cuda.cudaLaunchHostFunc)(stream, function, user) };
            self.cuda.check("cudaLaunchHostFunc", answer)
        })
    }

    fn event_create(&self) -> PluginResult<sys::Event> {
        let mut event = std::ptr::null_mut();
        let flags = sys::CUDA_EVENT_DISABLE_TIMING;
        // SAFETY: there is room for the handle.
        let answer = unsafe { (self.cuda.cudaEventCreateWithFlags)(&raw mut event, flags) };
        self.cuda.check("cudaEventCreateWithFlags", answer)?;
        Ok(event)
    }

    fn event_destroy(&self, event: sys::Event) -> PluginResult<()> {
        // SAFETY: the caller passes an event of `event_create`, once.
        self.cuda.check("cudaEventDestroy", unsafe { (self.cuda.cudaEventDestroy)(event) })
    }

    fn event_record(&self, event: sys::Event, stream: sys::Stream) -> PluginResult<()> {
        self.enqueue_on(stream)?;
        // SAFETY: the caller passes an event and a stream of this card.
        self.cuda.check("cudaEventRecord", unsafe { (self.cuda.cudaEventRecord)(event, stream) })
    }

    fn event_query(&self, _ordinal: i32, event: sys::Event) -> PluginResult<Progress> {
        // SAFETY: the caller passes an event.
        self.progress("cudaEventQuery", unsafe { (self.cuda.cudaEventQuery)(event) })
    }

    fn health(&self, idle: sys::Stream) -> PluginResult<()> {
        // SAFETY: a stream of `stream_create`.
        self.progress("cudaStreamQuery", unsafe { (self.cuda.cudaStreamQuery)(idle) }).map(drop)
    }

    fn last_words(&self) -> Option<String> {
        // SAFETY: no arguments; the library takes any number, and its texts are statics.
        unsafe {
            let error = (self.cuda.cudaGetLastError)();
            (error != sys::CUDA_SUCCESS).then(|| static_text((self.cuda.cudaGetErrorString)(error)))
        }
    }
}
