"""TensorBoard: an event file through TensorBoard's own writer, without torch and without TensorFlow."""

from collections.abc import Sequence
from typing import Any

from flatout.monitor.sinks.protocol import WENT_WELL, Ending
from flatout.records.points import Point

# Kept by the writer before somebody who looks can see them.
_FLUSH_S = 10


class EventFiles:
    """Scalars in a folder that `tensorboard --logdir` is pointed at."""

    def __init__(self, folder: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.note = ""
        self._event, self._summary = Event, Summary
        self._is_scalar = SummaryMetadata(
            plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"), data_class="DATA_CLASS_SCALAR"
        )
        self._writer: Any = EventFileWriter(folder, flush_secs=_FLUSH_S)

    def write(self, points: Sequence[Point]) -> None:
        """One event for each point, at its own time."""
        for point in points:
            values = [
                self._summary.Value(tag=name, simple_value=value, metadata=self._is_scalar)
                for name, value in point.values.items()
            ]
            summary = self._summary(value=values)
            self._writer.add_event(self._event(wall_time=point.at_unix_s, step=point.step, summary=summary))

    def close(self, _: Ending = WENT_WELL, /) -> None:
        """Flush, and end the file."""
        self._writer.close()
