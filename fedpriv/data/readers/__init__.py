"""Readers of the data that people bring: Hugging Face data sets, tables, image folders, texts of users."""
