#!/bin/bash
# Runs a rank and writes its exit status into CROSSRANK_TEST_FOLDER/status.RANK.
"$@"
status=$?
echo "$status" >"$CROSSRANK_TEST_FOLDER/status.$OMPI_COMM_WORLD_RANK"
exit "$status"
