//! A process that uses simulated libraries as a program would use the real ones.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use super::SOON;

/// A process that tries one scenario. Ended when dropped.
pub struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Process {
    /// Starts the program with the folder of the simulated libraries, words, and only these variables.
    pub fn start(program: &str, folder: &Path, words: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(program)
            .arg(folder)
            .args(words)
            .env_clear()
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a process");
        let (sender, lines) = channel();
        let outputs: [Box<dyn BufRead + Send>; 2] = [
            Box::new(BufReader::new(child.stdout.take().expect("its output"))),
            Box::new(BufReader::new(child.stderr.take().expect("its messages"))),
        ];
        for output in outputs {
            let sender = sender.clone();
            std::thread::spawn(move || {
                output.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
            });
        }
        let input = child.stdin.take().expect("its input");
        Self { child, input, lines, said: Vec::new() }
    }

    /// The next line that starts with a word, without it.
    pub fn line(&mut self, word: &str) -> String {
        let deadline = Instant::now() + SOON;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("no \"{word}\" came:\n{}", self.said.join("\n"))
            };
            self.said.push(line.clone());
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Gives it a line of input.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it listens");
    }

    /// Waits for its end; all that it said, and the signal that ended it, if one did.
    pub fn end(&mut self) -> (Option<i32>, Option<i32>, String) {
        let deadline = Instant::now() + SOON;
        while let Ok(line) =
            self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            self.said.push(line);
        }
        assert!(Instant::now() < deadline, "it does not end:\n{}", self.said.join("\n"));
        let status = self.child.wait().expect("its status");
        (status.code(), status.signal(), self.said.join("\n"))
    }

    /// Ends it by a signal that it cannot catch.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
    }

    /// Waits for its end, which must be a good one. Gives all that it said.
    pub fn must_succeed(&mut self) -> String {
        let (code, signal, said) = self.end();
        assert_eq!((code, signal), (Some(0), None), "{said}");
        assert!(said.lines().any(|line| line == "done"), "{said}");
        said
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
