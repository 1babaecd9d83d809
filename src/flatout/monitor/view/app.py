"""The live view: frames drawn again and again, and keys. Reads only, unless it may stop jobs."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from flatout.monitor.history import DeviceHistory
from flatout.monitor.replaying import Replay
from flatout.monitor.source_watch import device_key
from flatout.monitor.view.drawing import cell, text
from flatout.monitor.view.endings import Endings, StopJob
from flatout.monitor.view.gpus import SPANS, detail_lines, gpu_lines
from flatout.monitor.view.head import head_line, keys_line, remark_lines
from flatout.monitor.view.marks import Marks
from flatout.monitor.view.screens import Question, TextScreen, key_lines
from flatout.monitor.view.widgets import Lines
from flatout.monitor.view.work import SORTINGS, Wish, WorkLine, job_lines, work_lines
from flatout.records.errors import FlatoutError
from flatout.records.watched import JobRow, gpus_of, job_rows, only_devices
from flatout.records.watching import Frame

# However fast samples come, nobody reads faster.
_REDRAW_LEAST_S = 0.25
READ_ONLY = "read-only: flatout watch --allow-stop can end jobs"
_SEEK_FRAMES = 10


class Looker(Protocol):
    """Where frames come from: a live machine or a recording."""

    def frame(self) -> Frame:
        """The newest frame."""

    def history(self, uuid: str) -> DeviceHistory:
        """What a device did until then."""


class WatchApp(App[None]):
    """`flatout watch` in a terminal."""

    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    CSS = """
    Screen { background: ansi_default; color: ansi_default; overflow: hidden; }
    #work { height: 1fr; }
    Input { display: none; height: 1; border: none; padding: 0; background: ansi_default; }
    Input.asked { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "quit", priority=False),
        Binding("down,j", "walk(1)", "down"),
        Binding("up,k", "walk(-1)", "up"),
        Binding("pagedown", "walk(10)", "down"),
        Binding("pageup", "walk(-10)", "up"),
        Binding("tab", "pick(1)", "next GPU", priority=True),
        Binding("shift+tab", "pick(-1)", "GPU before", priority=True),
        *(Binding(str(number), f"pick_index({number})", f"GPU {number}") for number in range(10)),
        Binding("g", "only_gpu", "its processes"),
        Binding("s", "sort", "sort"),
        Binding("slash,f", "filter", "filter"),
        Binding("escape", "leave_filter", "no filter"),
        Binding("t", "span", "time"),
        Binding("space,p", "pause", "pause"),
        Binding("left", "seek(-1)", "back"),
        Binding("right", "seek(1)", "forth"),
        Binding("home", "seek_end(0)", "first"),
        Binding("end", "seek_end(1)", "last"),
        Binding("enter", "open", "open"),
        Binding("x", "stop", "stop"),
        Binding("question_mark,h", "help", "keys"),
    ]

    def __init__(
        self,
        looker: Looker,
        *,
        every_s: float = 1.0,
        marks: Marks = Marks(),
        devices: Sequence[str] = (),
        stop_job: StopJob | None = None,
        on_frame: Callable[[Frame], None] = lambda _frame: None,
    ) -> None:
        super().__init__(ansi_color=True)
        self.looker, self.marks = looker, marks
        self.every_s, self.devices = every_s, tuple(devices)
        self.stop_job, self.on_frame = stop_job, on_frame
        self.looked = only_devices(looker.frame(), self.devices)
        self.wish = Wish()
        self.picked = ""
        self.span = 1
        self.frozen = False
        self.said = ""
        self.ended_by: int | None = None
        # They go on when the view is left.
        self.endings = Endings(lambda: self.call_later(self._tell_news))
        self._work: list[WorkLine] = []
        self._chosen = ""

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield Lines("head")
        yield Lines("remarks")
        yield Lines("gpus")
        yield Lines("detail")
        yield Lines("work")
        yield Input(placeholder="name, user or pid; enter keeps it, escape ends it", select_on_focus=False)
        yield Lines("message")
        yield Lines("keys")

    def on_mount(self) -> None:
        """Begin to look. Signals end the view first, so that the terminal is as it was."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                loop.add_signal_handler(number, self._end_by, number)
        self.look()
        self.set_interval(max(self.every_s, _REDRAW_LEAST_S), self.look)

    def on_resize(self) -> None:
        """Another size is another layout."""
        self.call_after_refresh(self.draw)

    def look(self) -> None:
        """Take the newest frame and draw it."""
        if not self.frozen:
            frame = self.looker.frame()
            try:
                self.on_frame(frame)
            except FlatoutError as error:
                self.tell(error.received)
                self.on_frame = lambda _frame: None
            self.looked = only_devices(frame, self.devices)
        self.draw()

    def draw(self) -> None:
        """Draw the frame at hand."""
        if not self.is_mounted(self.query_one("#head", Lines)):
            return
        width, marks, frame = self.size.width, self.marks, self.looked
        pairs = gpus_of(frame)
        keys = [device_key(device) for device, _ in pairs]
        if self.picked not in keys:
            self.picked = keys[0] if keys else ""
        span = SPANS[self.span]
        self._fill("head", [head_line(frame, width, marks, self._mode())])
        notes = remark_lines(frame, width, marks)
        gpus = gpu_lines(frame, width, self.picked, self.looker.history, span[1], marks)
        gpus_height, detail_height = self._heights(len(notes), len(pairs))
        self._fill("remarks", notes)
        self._fill("gpus", gpus, height=gpus_height, chosen_line=keys.index(self.picked) if keys else None)
        detail: list[Text] = []
        for device, sample in pairs:
            if device_key(device) == self.picked and detail_height:
                history = self.looker.history(self.picked)
                detail = detail_lines(device, sample, frame, width, detail_height, history, span, marks)
        self._fill("detail", detail)
        self._draw_work()
        self._fill("message", [cell(text(self.said, marks, "warn"), width, marks)] if self.said else [])
        self._fill("keys", [keys_line(width, marks, span[0], replay=isinstance(self.looker, Replay))])
        for screen in self.screen_stack[1:]:
            if isinstance(screen, TextScreen) and screen.is_mounted:
                screen.draw()

    def tell(self, words: str) -> None:
        """Say something below."""
        self.said = words
        self.draw()

    # What keys do

    def action_walk(self, lines: int) -> None:
        """Choose another line."""
        places = [line.key for line in self._work if line.key]
        if places:
            at = places.index(self._chosen) + lines if self._chosen in places else 0
            self._chosen = places[max(0, min(len(places) - 1, at))]
        self._draw_work()

    def action_pick(self, step: int) -> None:
        """Pick the next GPU, or the one before."""
        keys = [device_key(device) for device, _ in gpus_of(self.looked)]
        if keys:
            at = keys.index(self.picked) if self.picked in keys else 0
            self.picked = keys[(at + step) % len(keys)]
            self._keep_to_picked()
        self.draw()

    def action_pick_index(self, index: int) -> None:
        """Pick a GPU by its number."""
        found = [device_key(device) for device, _ in gpus_of(self.looked) if device.index == index]
        if found:
            self.picked = found[0]
            self._keep_to_picked()
            self.draw()
        else:
            self.tell(f"there is no GPU {index}")

    def action_only_gpu(self) -> None:
        """Processes of the picked GPU alone, or of all."""
        picked = [device.index for device, _ in gpus_of(self.looked) if device_key(device) == self.picked]
        gpu = picked[0] if picked and self.wish.gpu is None else None
        self.wish = Wish(self.wish.sorting, self.wish.filter, gpu)
        self.tell("processes of all GPUs" if gpu is None else f"processes of GPU {gpu}")

    def action_sort(self) -> None:
        """The next way to sort."""
        sorting = SORTINGS[(SORTINGS.index(self.wish.sorting) + 1) % len(SORTINGS)]
        self.wish = Wish(sorting, self.wish.filter, self.wish.gpu)
        self.tell(f"sorted by {sorting}")

    def action_span(self) -> None:
        """Another stretch of time for curves."""
        self.span = (self.span + 1) % len(SPANS)
        self.tell(f"curves show {SPANS[self.span][0]}")

    def action_filter(self) -> None:
        """Ask for words."""
        asked = self.query_one(Input)
        asked.add_class("asked")
        asked.focus()

    def action_leave_filter(self) -> None:
        """No filter any more."""
        self.query_one(Input).value = ""
        self._set_filter("")
        self._close_filter()

    def on_input_changed(self, event: Input.Changed) -> None:
        """The list follows what is typed."""
        self._set_filter(event.value)

    def on_input_submitted(self) -> None:
        """Keep it, and go back to the list."""
        self._close_filter()

    def action_pause(self) -> None:
        """Stand still, or go on."""
        if isinstance(self.looker, Replay):
            self.looker.pause()
        else:
            self.frozen = not self.frozen
        self.look()

    def action_seek(self, direction: int) -> None:
        """Go through a recording."""
        self._go(lambda replay: replay.jump(direction * _SEEK_FRAMES))

    def action_seek_end(self, last: int) -> None:
        """To the first or the last frame."""
        self._go(lambda replay: replay.go_to(len(replay) - 1 if last else 0))

    def action_open(self) -> None:
        """Show everything known of the chosen job."""
        row = self._chosen_job()
        if row is None:
            self.tell("choose a job first: down and up walk through the list")
            return
        key = row.key

        def lines(width: int) -> list[Text]:
            found = next((one for one in job_rows(self.looked) if one.key == key), None)
            return job_lines(found or row, width, self.marks)

        self.push_screen(TextScreen(lines, self.marks))

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(TextScreen(lambda width: key_lines(width, self.marks), self.marks))

    def action_stop(self) -> None:
        """Ask whether to end the chosen job."""
        row = self._chosen_job()
        if isinstance(self.looker, Replay):
            self.tell("this is a recording: nothing can be stopped")
        elif self.stop_job is None:
            self.tell(READ_ONLY)
        elif row is None:
            self.tell("choose a job first: down and up walk through the list")
        else:
            words = [
                f"End {row.name}?",
                f"pid {row.pid}, of {row.user}",
                "It is asked to save; what is left of its tree after a while is ended.",
                "y  yes    n  no",
            ]
            self.push_screen(Question(words, self.marks), lambda yes: self._stop(row) if yes else None)

    # Parts of these

    def _stop(self, row: JobRow) -> None:
        stop = self.stop_job
        if stop is None:
            return
        self.tell(f"{row.name}: asked to save and end")
        self.endings.begin(row, stop)

    def _tell_news(self) -> None:
        for words in self.endings.news():
            self.tell(words)

    def _end_by(self, number: int) -> None:
        self.ended_by = number
        self.exit()

    def _go(self, move: Callable[[Replay], None]) -> None:
        if isinstance(self.looker, Replay):
            move(self.looker)
            self.look()

    def _keep_to_picked(self) -> None:
        if self.wish.gpu is not None:
            self.wish = Wish(self.wish.sorting, self.wish.filter)
            self.action_only_gpu()

    def _set_filter(self, words: str) -> None:
        self.wish = Wish(self.wish.sorting, words, self.wish.gpu)
        self._draw_work()

    def _close_filter(self) -> None:
        self.query_one(Input).remove_class("asked")
        self.set_focus(None)
        self.tell(f"filter: {self.wish.filter}" if self.wish.filter else "")

    def _chosen_job(self) -> JobRow | None:
        return next((line.job for line in self._work if line.key == self._chosen), None)

    def _draw_work(self) -> None:
        self._work = work_lines(self.looked, self.size.width, self.wish, self.marks)
        keys = [line.key for line in self._work]
        chosen = keys.index(self._chosen) if self._chosen in keys and self._chosen else None
        self.query_one("#work", Lines).show([line.drawn for line in self._work], chosen)

    def _mode(self) -> str:
        if isinstance(self.looker, Replay):
            place = f"frame {self.looker.place + 1} of {len(self.looker)}"
            return f"{place}, paused" if self.looker.paused else place
        return "paused" if self.frozen else ""

    def _heights(self, remarks_height: int, gpus: int) -> tuple[int, int]:
        """Lines for the list of GPUs and for the picked one; work has a third of the screen, at least."""
        left = self.size.height - 3 - remarks_height
        for_gpus = min(gpus, max(1, left // 2)) if gpus else 0
        detail = left - for_gpus - max(4, self.size.height // 3)
        return for_gpus, max(0, min(detail, 19)) if gpus else 0

    def _fill(
        self, name: str, lines: Sequence[Text], *, height: int | None = None, chosen_line: int | None = None
    ) -> None:
        widget = self.query_one(f"#{name}", Lines)
        wanted = len(lines) if height is None else height
        widget.display = wanted > 0
        if widget.styles.height is None or widget.styles.height.value != wanted:
            widget.styles.height = wanted
        if chosen_line is not None and wanted < len(lines):
            first = min(max(0, chosen_line - wanted // 2), len(lines) - wanted)
            lines = lines[first : first + wanted]
        widget.show(lines)
