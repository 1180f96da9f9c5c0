//! The application's surface: runtime, communicators, streams, handles.
