"""One function per API: ``handle(core, request, message)``; the table of them is in `table`."""
