"""The data of the pages as plain values: functions of a run, without Streamlit."""
